#include "sparseflow/cache_simulator.h"

#include <algorithm>
#include <deque>

#include "sparseflow/errors.h"

namespace sparseflow {
namespace {

constexpr int64_t kBlobBytes = 64;
constexpr int kQueueDepth = 4;
constexpr int64_t kMaxExperts = 1 << 20;  // of a model; the real ones have thousands

// Headers of a model whose experts are zeros.
ExpertFiles empty_files(const SimulatedModel& model) {
  const std::vector<std::byte> blob(static_cast<size_t>(kBlobBytes));
  SfiHeader header{};
  header.geometry.num_experts = model.num_experts;
  header.geometry.format = WeightFormat::kBf16;
  header.geometry.blob_bytes = kBlobBytes;
  header.blob_hashes.assign(static_cast<size_t>(model.num_experts),
                            xxh3_64(blob.data(), blob.size()));
  ExpertFiles files;
  files.paths.resize(static_cast<size_t>(model.num_layers));
  files.headers.assign(static_cast<size_t>(model.num_layers), header);
  return files;
}

void check(const SimulatedModel& model) {
  const bool is_possible = model.num_layers >= 1 && model.num_experts >= 1 &&
                           model.num_layers <= kMaxExperts / model.num_experts &&
                           model.num_experts_per_tok >= 1 &&
                           model.num_experts_per_tok <= model.num_experts;
  if (!is_possible) {
    throw ConfigError("cache simulator: " + std::to_string(model.num_layers) + " layers of " +
                      std::to_string(model.num_experts) + " experts, " +
                      std::to_string(model.num_experts_per_tok) + " a token: no such model");
  }
}

}  // namespace

// Ends reads inside submit, one after another: a read that is submitted by the end of another waits
// for its turn, so that the stack does not grow.
class CacheSimulator::NoEngine final : public ReadEngine {
 public:
  const char* name() const noexcept override { return "none"; }
  int queue_depth() const noexcept override { return kQueueDepth; }
  int open(const std::string&) override { return 0; }
  const std::string& path(int) const override { return path_; }
  int64_t file_bytes(int) const override { return 0; }
  bool is_direct(int) const override { return false; }
  void submit(const ReadRequest& request) override {
    waiting_.push_back(request);
    if (is_busy_) return;
    is_busy_ = true;
    while (!waiting_.empty()) {
      const ReadRequest next = waiting_.front();
      waiting_.pop_front();
      next.sink->read_done(next, {0, 0});
    }
    is_busy_ = false;
  }

 private:
  std::string path_;
  std::deque<ReadRequest> waiting_;
  bool is_busy_ = false;
};

CacheSimulator::CacheSimulator(const std::string& policy, const SimulatedModel& model,
                               int64_t num_slots)
    : model_(model) {
  check(model);
  const CacheRequest request{num_slots * kBlobBytes,    model.num_layers, model.num_experts,
                             model.num_experts_per_tok, kBlobBytes,       kQueueDepth};
  const bool is_split = num_slots >= model.num_layers * model.num_experts_per_tok &&
                        num_slots < model.num_layers * model.num_experts;
  CacheLayout layout = is_split ? split_by_layer(request, num_slots) : plan_cache(request);
  files_ = empty_files(model);
  engine_ = std::make_unique<NoEngine>();
  cache_ = std::make_unique<ExpertCache>(
      files_, std::vector<int>(files_.headers.size(), 0), *engine_,
      create_policy(policy, model.num_layers, model.num_experts), std::move(layout));
}

CacheSimulator::~CacheSimulator() = default;

int64_t CacheSimulator::forward(std::span<const int32_t> experts, int64_t num_tokens) {
  const auto k = static_cast<size_t>(model_.num_experts_per_tok);
  const auto row_size = static_cast<size_t>(model_.num_layers) * k;
  int64_t misses = 0;
  for (int32_t layer = 0; layer < model_.num_layers; ++layer) {
    rows_.clear();
    for (size_t token = 0; token < static_cast<size_t>(num_tokens); ++token) {
      const auto row = experts.subspan(token * row_size + static_cast<size_t>(layer) * k, k);
      rows_.insert(rows_.end(), row.begin(), row.end());
    }
    misses += forward_layer(layer, rows_, num_tokens);
  }
  return misses;
}

int64_t CacheSimulator::forward_layer(int32_t layer, std::span<const int32_t> experts,
                                      int64_t num_tokens) {
  const auto k = static_cast<size_t>(model_.num_experts_per_tok);
  union_.assign(experts.begin(), experts.end());
  std::sort(union_.begin(), union_.end());
  if (!union_.empty() && (union_.front() < 0 || union_.back() >= model_.num_experts)) {
    throw ConfigError("routes: an expert of layer " + std::to_string(layer) + " is not in 0 to " +
                      std::to_string(model_.num_experts - 1));
  }
  union_.erase(std::unique(union_.begin(), union_.end()), union_.end());
  const int64_t before = cache_->counters().misses;
  for (size_t token = 0; token < static_cast<size_t>(num_tokens); ++token) {
    cache_->observe(layer, experts.subspan(token * k, k));
  }
  cache_->expect(layer, union_);
  const auto wave = static_cast<size_t>(cache_->layout().max_lease);
  for (size_t first = 0; first < union_.size(); first += wave) {
    const auto count = std::min(wave, union_.size() - first);
    (void)cache_->acquire(layer, std::span(union_).subspan(first, count));
  }
  return cache_->counters().misses - before;
}

}  // namespace sparseflow
