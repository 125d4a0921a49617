// One MoE layer over some tokens: experts from a source, the shared expert, and their weighted sum.
#pragma once

#include <cstdint>
#include <span>

#include "sparseflow/expert_source.h"
#include "sparseflow/ops.h"
#include "sparseflow/runtime.h"

namespace sparseflow {

// The expert that every token uses. Its output is scaled by sigmoid(gate_logit . x). Does not own.
struct SharedExpert {
  MatrixView gate;        // [shared_expert_intermediate_size, hidden_size]
  MatrixView up;          // [shared_expert_intermediate_size, hidden_size]
  MatrixView down;        // [hidden_size, shared_expert_intermediate_size]
  MatrixView gate_logit;  // float32 [1, hidden_size]
};

// The next layer's router: applied to this layer's residual, it guesses what will be chosen there.
// Of a prompt it is asked for some tokens: an expert that two of them would choose will be needed,
// and may be read before that layer begins. Does not own.
struct LookAhead {
  int32_t layer;  // the next one
  RouterBlock router;
  bool guesses_steps;  // of single tokens too
};

struct MoeLayer {
  int32_t layer;
  const float* x;  // [num_tokens, hidden_size]
  int64_t num_tokens;
  std::span<const int32_t> topk_ids;    // [num_tokens, k], strictly ascending in each row
  std::span<const float> topk_weights;  // [num_tokens, k]
  int64_t k;
  const SharedExpert* shared;        // null: the family has none
  float* residual;                   // [num_tokens, hidden_size]; does not overlap x
  const LookAhead* ahead = nullptr;  // null: no guess
};

// residual[t] += an fma chain from +0 over the token's experts in ascending id, expert(x[t]) times
// its weight, and last the shared expert's. expert(x) = down (silu(gate x) * (up x)); integer
// formats quantize x once for all, and the product once per expert.
//
// Which experts were in memory, in which order reads ended, how tokens are tiled and how many
// threads run changes no bit. Few rows: experts compute as they are delivered, each into its own
// rows, hits and the shared expert while misses load. Many rows: strictly ascending, while later
// reads are under way. Working memory comes from the runtime's scratch and is bounded.
//
// Called under a NativeCall. One call at a time per source; others sleep. Throws ConfigError for
// ids that are out of range or not ascending, StorageError or ContainerError where an expert cannot
// be read; no lease survives and the residual is as it was.
void moe_forward(Runtime& runtime, ExpertSource& source, const MoeLayer& call);

}  // namespace sparseflow
