// The score is the moment of the last choice, counted over all layers.
#include <algorithm>
#include <numeric>

#include "cache/policies.h"

namespace sparseflow {
namespace {

class LruPolicy final : public EvictionPolicy {
 public:
  LruPolicy(int64_t num_layers, int64_t num_experts)
      : num_experts_(static_cast<size_t>(num_experts)),
        last_use_(static_cast<size_t>(num_layers * num_experts), 0) {}

  const char* name() const noexcept override { return "lru"; }

  void observe(int32_t layer, std::span<const int32_t> experts) override {
    for (const int32_t e : experts) {
      last_use_[static_cast<size_t>(layer) * num_experts_ + static_cast<size_t>(e)] = ++clock_;
    }
  }

  double score(ExpertKey key) const override {
    return static_cast<double>(
        last_use_[static_cast<size_t>(key.layer) * num_experts_ + static_cast<size_t>(key.expert)]);
  }

  // Ranks rather than moments, which float32 would round after 2^24 choices.
  std::vector<float> export_heat() const override {
    std::vector<size_t> order(last_use_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [this](size_t a, size_t b) { return last_use_[a] < last_use_[b]; });
    std::vector<float> heat(2 * last_use_.size(), 0.0f);
    for (size_t rank = 0; rank < order.size(); ++rank) {
      if (last_use_[order[rank]] != 0) heat[2 * order[rank]] = static_cast<float>(rank + 1);
    }
    return heat;
  }

  void import_heat(std::span<const float> heat) override {
    clock_ = 0;
    for (size_t i = 0; i < last_use_.size(); ++i) {
      last_use_[i] = static_cast<int64_t>(std::min(usable_heat(heat[2 * i]), 1e9));
      clock_ = std::max(clock_, last_use_[i]);
    }
  }

 private:
  size_t num_experts_;
  int64_t clock_ = 0;
  std::vector<int64_t> last_use_;  // [num_layers, num_experts]; 0: never
};

}  // namespace

std::unique_ptr<EvictionPolicy> create_lru_policy(int64_t num_layers, int64_t num_experts) {
  return std::make_unique<LruPolicy>(num_layers, num_experts);
}

}  // namespace sparseflow
