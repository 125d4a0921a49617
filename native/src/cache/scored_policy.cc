// score = (1 - d1) S1 + 2 (1 - d2) S2, where S decays by d = 2^(-1 / half-life) per token of its
// layer and gains 1 when chosen. On recorded routes of Qwen3.6-35B-A3B it misses 30.5 % at a
// capacity of 13.3 %, LRU 31.9 %, the best possible 18.2 %.
#include <cmath>

#include "cache/policies.h"

namespace sparseflow {
namespace {

constexpr double kHalfLife1 = 2.0;
constexpr double kHalfLife2 = 32.0;
constexpr double kEarlierRuns =
    0.3;  // what an imported sum still counts; at 1, a small cache misses 0.7 points more
constexpr double kForgotten =
    1e-30;  // sums below it become 0, long before arithmetic on them turns slow

class ScoredPolicy final : public EvictionPolicy {
 public:
  ScoredPolicy(int64_t num_layers, int64_t num_experts)
      : num_experts_(static_cast<size_t>(num_experts)),
        sums_(static_cast<size_t>(num_layers * num_experts)) {}

  const char* name() const noexcept override { return "scored"; }

  void observe(int32_t layer, std::span<const int32_t> experts) override {
    Sums* sums = sums_.data() + static_cast<size_t>(layer) * num_experts_;
    for (size_t e = 0; e < num_experts_; ++e) {
      sums[e].fast = decayed(sums[e].fast, decay1_);
      sums[e].slow = decayed(sums[e].slow, decay2_);
    }
    for (const int32_t e : experts) {
      sums[e].fast += 1.0;
      sums[e].slow += 1.0;
    }
  }

  double score(ExpertKey key) const override {
    const Sums& s =
        sums_[static_cast<size_t>(key.layer) * num_experts_ + static_cast<size_t>(key.expert)];
    return (1.0 - decay1_) * s.fast + 2.0 * (1.0 - decay2_) * s.slow;
  }

  std::vector<float> export_heat() const override {
    std::vector<float> heat;
    heat.reserve(2 * sums_.size());
    for (const Sums& s : sums_) {
      heat.push_back(static_cast<float>(s.fast));
      heat.push_back(static_cast<float>(s.slow));
    }
    return heat;
  }

  void import_heat(std::span<const float> heat) override {
    for (size_t i = 0; i < sums_.size(); ++i) {
      sums_[i] = {kEarlierRuns * usable_heat(heat[2 * i]),
                  kEarlierRuns * usable_heat(heat[2 * i + 1])};
    }
  }

 private:
  struct Sums {
    double fast = 0.0;
    double slow = 0.0;
  };

  static double decayed(double sum, double decay) noexcept {
    const double next = sum * decay;
    return next < kForgotten ? 0.0 : next;
  }

  const double decay1_ = std::exp2(-1.0 / kHalfLife1);
  const double decay2_ = std::exp2(-1.0 / kHalfLife2);
  size_t num_experts_;
  std::vector<Sums> sums_;  // [num_layers, num_experts]
};

}  // namespace

std::unique_ptr<EvictionPolicy> create_scored_policy(int64_t num_layers, int64_t num_experts) {
  return std::make_unique<ScoredPolicy>(num_layers, num_experts);
}

}  // namespace sparseflow
