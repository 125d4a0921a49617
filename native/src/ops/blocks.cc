#include "sparseflow/ops.h"

namespace sparseflow {
namespace {

const float* normed_rows(Runtime& runtime, const NormView& norm, const float* x, int64_t num_tokens,
                         int64_t hidden_size) {
  float* normed = runtime.scratch().floats(num_tokens * hidden_size);
  rms_norm(runtime, x, norm, num_tokens, hidden_size, normed);
  return normed;
}

LinearOutput into_scratch(Runtime& runtime, const MatrixView& weights, int64_t num_tokens) {
  return {weights, runtime.scratch().floats(num_tokens * weights.rows), weights.rows};
}

// x += weights y, with y [num_tokens, weights.cols].
void add_projected(Runtime& runtime, const MatrixView& weights, const float* y, int64_t num_tokens,
                   float* x) {
  const LinearOutput output = into_scratch(runtime, weights, num_tokens);
  linear(runtime, {&output, 1}, y, num_tokens);
  add(runtime, x, output.out, num_tokens * weights.rows);
}

}  // namespace

void attention_block(Runtime& runtime, const AttentionBlock& block, float* x, int64_t num_tokens,
                     int64_t position, const KvCacheView& cache) {
  const float* normed = normed_rows(runtime, block.norm, x, num_tokens, block.query.cols);
  const LinearOutput inputs[] = {into_scratch(runtime, block.query, num_tokens),
                                 into_scratch(runtime, block.key, num_tokens),
                                 into_scratch(runtime, block.value, num_tokens)};
  linear(runtime, inputs, normed, num_tokens);
  float* mixed = runtime.scratch().floats(num_tokens * block.out.cols);
  attention(runtime, *block.layer, inputs[0].out, inputs[1].out, inputs[2].out, position,
            num_tokens, cache, mixed);
  add_projected(runtime, block.out, mixed, num_tokens, x);
}

void delta_block(Runtime& runtime, const DeltaBlock& block, float* x, int64_t num_tokens,
                 float* conv_tail, float* state) {
  const float* normed = normed_rows(runtime, block.norm, x, num_tokens, block.qkv.cols);
  const LinearOutput inputs[] = {
      into_scratch(runtime, block.qkv, num_tokens), into_scratch(runtime, block.z, num_tokens),
      into_scratch(runtime, block.b, num_tokens), into_scratch(runtime, block.a, num_tokens)};
  linear(runtime, inputs, normed, num_tokens);
  float* mixed = runtime.scratch().floats(num_tokens * block.out.cols);
  gated_delta(runtime, *block.layer, {inputs[0].out, inputs[1].out, inputs[2].out, inputs[3].out},
              num_tokens, conv_tail, state, mixed);
  add_projected(runtime, block.out, mixed, num_tokens, x);
}

bool route_block(Runtime& runtime, const RouterBlock& block, const float* x, int64_t num_tokens,
                 int64_t k, float* normed, int32_t* ids, float* weights) {
  const int64_t num_experts = block.gate.rows;
  rms_norm(runtime, x, block.norm, num_tokens, block.gate.cols, normed);
  const LinearOutput logits = into_scratch(runtime, block.gate, num_tokens);
  linear(runtime, {&logits, 1}, normed, num_tokens);
  if (!is_finite(logits.out, num_tokens * num_experts)) return false;
  route(runtime, logits.out, num_tokens, num_experts, k, ids, weights);
  return true;
}

}  // namespace sparseflow
