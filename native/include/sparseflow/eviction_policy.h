// Which cached expert to give up. A policy sees what the router chose and ranks; it holds no slots
// and reads nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sparseflow {

struct ExpertKey {
  int32_t layer;
  int32_t expert;
  bool operator==(const ExpertKey&) const = default;
};

// Not thread-safe: the cache calls it under its lock. Nothing here can change an output, only time.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  virtual const char* name() const noexcept = 0;

  // One token's experts in one layer; where their order matters, the last counts as the most
  // recent. Prefill calls it row by row. This is the layer's clock.
  virtual void observe(int32_t layer, std::span<const int32_t> experts) = 0;

  // How much an expert is worth keeping; the smallest is evicted, ties to the lower key. Defined
  // for every expert, cached or not: history survives eviction.
  virtual double score(ExpertKey key) const = 0;

  // The history as [num_layers, num_experts, 2] float32, scaled so that it can be imported into a
  // policy of the same name, which may trust it less than its own.
  virtual std::vector<float> export_heat() const = 0;

  // REQUIRES: as many values as export_heat gives. Values that are not finite or negative count as
  // 0.
  virtual void import_heat(std::span<const float> heat) = 0;
};

// "scored": two moving averages with half-lives of 2 and 32 tokens, weighted 1:2. "lru": least
// recently chosen. Throws ConfigError naming the known policies.
std::unique_ptr<EvictionPolicy> create_policy(const std::string& name, int64_t num_layers,
                                              int64_t num_experts);

std::vector<std::string> policy_names();

}  // namespace sparseflow
