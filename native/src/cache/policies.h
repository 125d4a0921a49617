// The known eviction policies, for create_policy.
#pragma once

#include "sparseflow/eviction_policy.h"

namespace sparseflow {

std::unique_ptr<EvictionPolicy> create_scored_policy(int64_t num_layers, int64_t num_experts);
std::unique_ptr<EvictionPolicy> create_lru_policy(int64_t num_layers, int64_t num_experts);

// A heat table comes from a file: what is not a finite, positive number counts as never chosen.
inline double usable_heat(float value) noexcept {
  return value > 0.0f && value <= 3.4e38f ? static_cast<double>(value) : 0.0;
}

}  // namespace sparseflow
