#include "cache/policies.h"
#include "sparseflow/errors.h"

namespace sparseflow {

std::vector<std::string> policy_names() { return {"scored", "lru"}; }

std::unique_ptr<EvictionPolicy> create_policy(const std::string& name, int64_t num_layers,
                                              int64_t num_experts) {
  if (name == "scored") return create_scored_policy(num_layers, num_experts);
  if (name == "lru") return create_lru_policy(num_layers, num_experts);
  throw ConfigError("policy: unknown '" + name + "'; known: scored, lru");
}

}  // namespace sparseflow
