// All experts in memory. Loaded layer by layer, so that the caller can show progress and stop in
// between.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sparseflow/expert_source.h"

namespace sparseflow {

class ResidentSource final : public ExpertSource, private LeaseOwner {
 public:
  // Checks headers and takes no memory for experts. Throws what open_expert_files throws.
  ResidentSource(const std::vector<std::string>& paths, std::shared_ptr<ReadEngine> engine);
  ~ResidentSource() override;

  // Reads and checks all experts of a layer. Throws StorageError, ContainerError or BudgetError;
  // the layer then stays not loaded and may be tried again. One thread at a time.
  void load_layer(int32_t layer);
  bool is_loaded(int32_t layer) const noexcept;
  int64_t resident_bytes() const noexcept;  // of loaded layers
  bool is_direct() const;
  const ReadEngine& engine() const noexcept { return *engine_; }

  int64_t num_layers() const noexcept override { return static_cast<int64_t>(files_.paths.size()); }
  const SfiGeometry& geometry() const noexcept override { return files_.headers.front().geometry; }
  int64_t max_lease() const noexcept override { return geometry().num_experts; }
  void observe(int32_t, std::span<const int32_t>, int64_t) override {}
  void read_ahead(int32_t, std::span<const int32_t>) override {}
  bool wants_advice() const override { return false; }
  void prefetch(int32_t, std::span<const int32_t>) override {}
  // Throws ConfigError if the layer is not loaded. Never sleeps.
  ExpertLease acquire(int32_t layer, std::span<const int32_t> experts) override;
  ExpertLease try_acquire(int32_t layer, std::span<const int32_t> experts) override {
    return acquire(layer, experts);
  }
  int64_t active_leases() const noexcept override;
  ExpertCounters counters() const override;

 private:
  void deliver(std::span<LeasedExpert>, bool) override {}
  void release(int32_t layer, std::vector<LeasedExpert>&& experts) noexcept override;
  int64_t layer_bytes() const noexcept { return geometry().num_experts * geometry().blob_bytes; }

  ExpertFiles files_;
  std::shared_ptr<ReadEngine> engine_;
  std::vector<int> file_ids_;
  std::vector<std::byte*> layers_;  // [num_layers] experts back to back, null until loaded

  mutable std::mutex mutex_;
  std::vector<std::vector<LeasedExpert>> spare_;
  int64_t active_leases_ = 0;
  ExpertCounters counters_;
};

}  // namespace sparseflow
