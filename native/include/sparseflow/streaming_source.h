// Experts leased from a bounded cache that reads them from storage when they are missing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sparseflow/expert_cache.h"
#include "sparseflow/expert_source.h"

namespace sparseflow {

struct StreamingOptions {
  int64_t capacity_bytes = 0;
  int64_t num_experts_per_tok = 1;
  std::string policy = "scored";
};

class StreamingSource final : public ExpertSource {
 public:
  // paths: one .sfi file per layer, in order. Throws what open_expert_files, plan_cache and
  // create_policy throw.
  StreamingSource(const std::vector<std::string>& paths, const StreamingOptions& options,
                  std::shared_ptr<ReadEngine> engine);

  int64_t num_layers() const noexcept override { return static_cast<int64_t>(files_.paths.size()); }
  const SfiGeometry& geometry() const noexcept override { return files_.headers.front().geometry; }
  int64_t max_lease() const noexcept override { return cache_->max_lease(); }
  void observe(int32_t layer, std::span<const int32_t> topk_ids, int64_t k) override;
  void read_ahead(int32_t layer, std::span<const int32_t> experts) override {
    cache_->read_ahead(layer, experts);
  }
  bool wants_advice() const override { return cache_->has_room(); }
  void prefetch(int32_t layer, std::span<const int32_t> experts) override {
    cache_->prefetch(layer, experts);
  }
  ExpertLease acquire(int32_t layer, std::span<const int32_t> experts) override {
    return cache_->acquire(layer, experts, true);
  }
  ExpertLease try_acquire(int32_t layer, std::span<const int32_t> experts) override {
    return cache_->acquire(layer, experts, false);
  }
  int64_t active_leases() const noexcept override { return cache_->active_leases(); }
  ExpertCounters counters() const override { return cache_->counters(); }

  // ExpertCache::resize; the most is what the options say.
  int64_t resize(int64_t capacity_bytes);

  ExpertCache& cache() noexcept { return *cache_; }
  const ReadEngine& engine() const noexcept { return *engine_; }
  bool is_direct() const;  // every file is read past the page cache

 private:
  ExpertFiles files_;
  std::shared_ptr<ReadEngine> engine_;
  std::vector<int> file_ids_;
  CacheRequest request_;
  std::unique_ptr<ExpertCache> cache_;
};

}  // namespace sparseflow
