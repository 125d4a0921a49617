// Routes through the product's own cache, with reads that take no time and bring no bytes: what it
// would hit and miss. The policy, the shares and the admission are those of ExpertCache, because it
// is one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparseflow/expert_cache.h"

namespace sparseflow {

struct SimulatedModel {
  int64_t num_layers;
  int64_t num_experts;
  int64_t num_experts_per_tok;
};

class CacheSimulator {
 public:
  // num_slots: experts that are kept; the slots for reads under way come on top. Throws ConfigError
  // for an unknown policy or impossible sizes, BudgetError for less than two slots.
  CacheSimulator(const std::string& policy, const SimulatedModel& model, int64_t num_slots);
  ~CacheSimulator();

  // One forward pass over num_tokens tokens: experts [num_tokens, num_layers, k], distinct in a
  // row, the most recent last. Returns the misses. Throws ConfigError for ids that are out of
  // range.
  int64_t forward(std::span<const int32_t> experts, int64_t num_tokens);

  // Continues with the history of another run, as ExpertCache does.
  std::vector<float> export_heat() const { return cache_->export_heat(); }
  void import_heat(std::span<const float> heat) { cache_->import_heat(heat); }
  void preload() { cache_->preload(); }

  const SimulatedModel& model() const noexcept { return model_; }
  CacheLayout layout() const { return cache_->layout(); }
  int64_t cached_experts() const { return cache_->cached_experts(); }

 private:
  class NoEngine;

  int64_t forward_layer(int32_t layer, std::span<const int32_t> experts, int64_t num_tokens);

  SimulatedModel model_;
  ExpertFiles files_;
  std::unique_ptr<NoEngine> engine_;
  std::unique_ptr<ExpertCache> cache_;
  std::vector<int32_t> rows_;   // one layer's choices, token by token
  std::vector<int32_t> union_;  // of them, ascending
};

}  // namespace sparseflow
