#include "sparseflow/streaming_source.h"

#include <algorithm>
#include <utility>

#include "cache/open_in_engine.h"

namespace sparseflow {

StreamingSource::StreamingSource(const std::vector<std::string>& paths,
                                 const StreamingOptions& options,
                                 std::shared_ptr<ReadEngine> engine)
    : files_(open_expert_files(paths)), engine_(std::move(engine)) {
  request_ = {options.capacity_bytes,      num_layers(),          geometry().num_experts,
              options.num_experts_per_tok, geometry().blob_bytes, engine_->queue_depth()};
  CacheLayout layout = plan_cache(request_);
  auto policy = create_policy(options.policy, num_layers(), geometry().num_experts);
  file_ids_ = open_in_engine(files_, *engine_);
  cache_ = std::make_unique<ExpertCache>(files_, file_ids_, *engine_, std::move(policy),
                                         std::move(layout));
}

void StreamingSource::observe(int32_t layer, std::span<const int32_t> topk_ids, int64_t k) {
  const auto row = static_cast<size_t>(k);
  for (size_t start = 0; start < topk_ids.size(); start += row) {
    cache_->observe(layer, topk_ids.subspan(start, row));
  }
  cache_->expect(layer, topk_ids);
}

int64_t StreamingSource::resize(int64_t capacity_bytes) {
  CacheRequest request = request_;
  request.capacity_bytes = capacity_bytes;
  return cache_->resize(request);
}

bool StreamingSource::is_direct() const {
  return std::all_of(file_ids_.begin(), file_ids_.end(),
                     [this](int file) { return engine_->is_direct(file); });
}

}  // namespace sparseflow
