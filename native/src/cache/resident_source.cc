#include "sparseflow/resident_source.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <utility>

#include "cache/open_in_engine.h"
#include "io/read_error.h"
#include "sparseflow/errors.h"
#include "sparseflow/expert_cache.h"

namespace sparseflow {
namespace {

// Collects the reads of one layer; each expert is checked by the thread that read it.
class LayerLoad final : public ReadSink {
 public:
  LayerLoad(const SfiHeader& header, int64_t num_reads) : header_(header), num_left_(num_reads) {}

  void read_done(const ReadRequest& request, const ReadResult& result) noexcept override {
    const char* damage = nullptr;
    if (result.error_number == 0) {
      damage = find_blob_error(header_.geometry, header_.blob_hashes[request.tag],
                               static_cast<const std::byte*>(request.buffer));
    }
    const std::lock_guard lock(mutex_);
    const bool failed = result.error_number != 0 || damage != nullptr;
    if (failed) ++num_failed_;
    if (failed && static_cast<int64_t>(request.tag) < failed_expert_) {
      failed_expert_ = static_cast<int64_t>(request.tag);
      result_ = result;
      damage_ = damage;
    }
    if (--num_left_ == 0) done_.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return num_left_ == 0; });
  }

  int64_t num_failed() const noexcept { return num_failed_; }

  // Throws for the failed expert of the lowest id. REQUIRES: wait() has returned.
  void throw_if_failed(const std::string& path) const {
    if (num_failed_ == 0) return;
    const std::string what = "expert " + std::to_string(failed_expert_) + " of layer " +
                             std::to_string(header_.geometry.layer);
    if (result_.error_number != 0) {
      throw_storage_error("cannot read " + what + " from", path, result_.error_offset,
                          result_.error_number);
    }
    throw ContainerError(path + ": " + what + ": " + damage_ +
                         "; check the container with verify, or prepare it again");
  }

 private:
  const SfiHeader& header_;
  std::mutex mutex_;
  std::condition_variable done_;
  int64_t num_left_;
  int64_t num_failed_ = 0;
  int64_t failed_expert_ = INT64_MAX;
  ReadResult result_{};
  const char* damage_ = nullptr;
};

}  // namespace

ResidentSource::ResidentSource(const std::vector<std::string>& paths,
                               std::shared_ptr<ReadEngine> engine)
    : files_(open_expert_files(paths)),
      engine_(std::move(engine)),
      file_ids_(open_in_engine(files_, *engine_)),
      layers_(files_.paths.size(), nullptr) {}

ResidentSource::~ResidentSource() {
  for (std::byte* layer : layers_) {
    if (layer != nullptr) unmap_aligned(layer, layer_bytes());
  }
}

void ResidentSource::load_layer(int32_t layer) {
  if (layer < 0 || layer >= num_layers()) {
    throw ConfigError("layer " + std::to_string(layer) + " of " + std::to_string(num_layers()));
  }
  const auto at = static_cast<size_t>(layer);
  if (layers_[at] != nullptr) return;
  const SfiGeometry& g = geometry();
  std::byte* memory = map_aligned(layer_bytes());
  const auto start = std::chrono::steady_clock::now();
  LayerLoad load(files_.headers[at], g.num_experts);
  for (int64_t expert = 0; expert < g.num_experts; ++expert) {
    engine_->submit({file_ids_[at], g.header_bytes + expert * g.blob_bytes, g.blob_bytes,
                     memory + expert * g.blob_bytes, &load, static_cast<uint64_t>(expert)});
  }
  load.wait();
  {
    const std::lock_guard lock(mutex_);
    counters_.reads += g.num_experts;
    counters_.failed_reads += load.num_failed();
    counters_.bytes_read += (g.num_experts - load.num_failed()) * g.blob_bytes;
    counters_.read_busy_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (load.num_failed() == 0) layers_[at] = memory;
  }
  if (load.num_failed() != 0) unmap_aligned(memory, layer_bytes());
  load.throw_if_failed(files_.paths[at]);
}

bool ResidentSource::is_loaded(int32_t layer) const noexcept {
  const std::lock_guard lock(mutex_);
  return layers_[static_cast<size_t>(layer)] != nullptr;
}

int64_t ResidentSource::resident_bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  const auto loaded = std::count_if(layers_.begin(), layers_.end(),
                                    [](const std::byte* layer) { return layer != nullptr; });
  return loaded * layer_bytes();
}

bool ResidentSource::is_direct() const {
  return std::all_of(file_ids_.begin(), file_ids_.end(),
                     [this](int file) { return engine_->is_direct(file); });
}

ExpertLease ResidentSource::acquire(int32_t layer, std::span<const int32_t> experts) {
  const std::lock_guard lock(mutex_);
  const std::byte* blobs = layers_[static_cast<size_t>(layer)];
  if (blobs == nullptr) {
    throw ConfigError("layer " + std::to_string(layer) + " is not loaded; call load_layer first");
  }
  std::vector<LeasedExpert> leased;
  if (!spare_.empty()) {
    leased = std::move(spare_.back());
    spare_.pop_back();
  }
  leased.reserve(experts.size());
  spare_.reserve(spare_.size() + static_cast<size_t>(active_leases_) +
                 1);  // so that release cannot fail
  for (const int32_t expert : experts) {
    leased.push_back({expert, expert, blobs + expert * geometry().blob_bytes, true});
  }
  ++active_leases_;
  counters_.hits += static_cast<int64_t>(experts.size());
  return {this, layer, std::move(leased)};
}

void ResidentSource::release(int32_t, std::vector<LeasedExpert>&& experts) noexcept {
  const std::lock_guard lock(mutex_);
  experts.clear();
  spare_.push_back(std::move(experts));
  --active_leases_;
}

int64_t ResidentSource::active_leases() const noexcept {
  const std::lock_guard lock(mutex_);
  return active_leases_;
}

ExpertCounters ResidentSource::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace sparseflow
