// Operations of a step, threaded over rows, heads or tokens. How work is split never changes a bit
// of the result: each output element is computed by one thread, in the order that kernel_table.h
// fixes.
//
// Shapes are the caller's duty here (bindings/ops.cc checks them); pointers do not overlap unless
// said. Arrays are float32, row-major and dense. All are called under a NativeCall.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparseflow/kernel_table.h"
#include "sparseflow/runtime.h"

namespace sparseflow {

// x [num_tokens, cols] quantized for integer formats; memory comes from the runtime's scratch.
// For float formats nothing is computed and the codes stay null. x_stride is cols.
Activations prepare_activations(Runtime& runtime, const float* x, int64_t num_tokens, int64_t cols,
                                bool quantized);

struct LinearOutput {
  MatrixView weights;
  float* out;          // [num_tokens, out_stride], the first weights.rows of each row are written
  int64_t out_stride;  // elements
};

// out_i = x W_i^T for matrices that share their input, which is quantized once.
void linear(Runtime& runtime, std::span<const LinearOutput> outputs, const float* x,
            int64_t num_tokens);

// x / sqrt(mean(x^2) + eps) * weight. Does not own.
struct NormView {
  const float* weight;  // [hidden_size]
  float eps;
};

void rms_norm(Runtime& runtime, const float* x, const NormView& norm, int64_t num_tokens, int64_t n,
              float* out);
void add(Runtime& runtime, float* x, const float* y, int64_t count);  // x += y
void silu_multiply(Runtime& runtime, const float* gate, const float* up, int64_t count, float* out);
void bf16_to_float(Runtime& runtime, const uint16_t* x, int64_t count, float* out);
void exp(Runtime& runtime, const float* x, int64_t count, float* out);
bool is_finite(const float* x, int64_t count);

struct AttentionLayer {
  int64_t num_heads = 0;
  int64_t num_kv_heads =
      0;  // divides num_heads; head h reads key/value head h / (num_heads / num_kv_heads)
  int64_t head_dim = 0;  // multiple of 16, at most 512
  float scale = 0;
  std::vector<float> inv_freq;  // [rotary_dim / 2], rotary_dim <= head_dim
  std::vector<float> q_norm;    // [head_dim] or empty
  std::vector<float> k_norm;    // [head_dim] or empty
  float eps = 0;
  bool gated = false;
};

// Keys and values of one layer: [num_kv_heads, capacity, head_dim] of format.
struct KvCacheView {
  void* keys;
  void* values;
  KvFormat format;
  int64_t capacity;
};

// Normalises and rotates queries and keys, writes keys and values at positions position.., and
// attends causally. query [num_tokens, num_heads, gated ? 2 : 1, head_dim]: per head the query,
// then its gate. key, value [num_tokens, num_kv_heads, head_dim]. out [num_tokens, num_heads,
// head_dim], multiplied by sigmoid(gate) if gated. REQUIRES: position + num_tokens <=
// cache.capacity.
void attention(Runtime& runtime, const AttentionLayer& layer, const float* query, const float* key,
               const float* value, int64_t position, int64_t num_tokens, const KvCacheView& cache,
               float* out);

struct DeltaLayer {
  int64_t num_key_heads = 0;
  int64_t num_value_heads =
      0;  // a multiple of num_key_heads; value head h reads key head h / (ratio)
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t kernel = 0;              // taps of the convolution
  std::vector<float> conv_weight;  // [conv_dim, kernel], conv_dim = 2 * num_key_heads * key_dim +
                                   // num_value_heads * value_dim
  std::vector<float> neg_exp_a;    // [num_value_heads]
  std::vector<float> dt_bias;      // [num_value_heads]
  std::vector<float> norm_weight;  // [value_dim]
  float eps = 0;
  float scale = 0;

  int64_t conv_dim() const noexcept {
    return 2 * num_key_heads * key_dim + num_value_heads * value_dim;
  }
};

struct DeltaInputs {
  const float* qkv;  // [num_tokens, conv_dim]
  const float* z;    // [num_tokens, num_value_heads, value_dim]
  const float* b;    // [num_tokens, num_value_heads]
  const float* a;    // [num_tokens, num_value_heads]
};

// Gated delta rule with its convolution and gated norm, one token after another; conv_tail
// [conv_dim, kernel - 1] and state [num_value_heads, key_dim, value_dim] are updated. out
// [num_tokens, num_value_heads, value_dim].
void gated_delta(Runtime& runtime, const DeltaLayer& layer, const DeltaInputs& inputs,
                 int64_t num_tokens, float* conv_tail, float* state, float* out);

// The k largest of each row of logits [num_tokens, num_experts], ties to the lower id; ids come out
// ascending, weights are exp(l - max) over the chosen divided by their sum (taken in ascending id).
void route(Runtime& runtime, const float* logits, int64_t num_tokens, int64_t num_experts,
           int64_t k, int32_t* ids, float* weights);

// What a layer does between two sums into the residual, in one call: the gap between calls is time
// in which the memory stands still. hidden_size is the projections' number of columns.

struct AttentionBlock {
  NormView norm;
  MatrixView query, key, value;  // of normed rows
  const AttentionLayer* layer;
  MatrixView out;
};

// x += out(attention(query, key, value of norm(x))). x [num_tokens, hidden_size].
void attention_block(Runtime& runtime, const AttentionBlock& block, float* x, int64_t num_tokens,
                     int64_t position, const KvCacheView& cache);

struct DeltaBlock {
  NormView norm;
  MatrixView qkv, z, b, a;  // of normed rows
  const DeltaLayer* layer;
  MatrixView out;
};

// x += out(gated_delta(qkv, z, b, a of norm(x))).
void delta_block(Runtime& runtime, const DeltaBlock& block, float* x, int64_t num_tokens,
                 float* conv_tail, float* state);

struct RouterBlock {
  NormView norm;
  MatrixView gate;  // [num_experts, hidden_size]
};

// normed = norm(x), and the experts that its rows choose, as route() gives them. False, and no
// choice, if a logit is not finite.
bool route_block(Runtime& runtime, const RouterBlock& block, const float* x, int64_t num_tokens,
                 int64_t k, float* normed, int32_t* ids, float* weights);

struct SampleParams {
  float temperature = 1.0F;         // 0: the largest logit, ties to the lower id
  int64_t top_k = 0;                // 0: off
  float top_p = 1.0F;               // 1: off
  float min_p = 0.0F;               // 0: off
  float repetition_penalty = 1.0F;  // on every id of the history
  float presence_penalty = 0.0F;    // on ids of the history after the prompt
  uint64_t seed = 0;
};

// The next id, below num_valid. Throws ConfigError if a logit is not finite.
int32_t sample(Runtime& runtime, std::span<const float> logits, std::span<const int32_t> history,
               int64_t num_prompt, const SampleParams& params, uint64_t position,
               int64_t num_valid);

// Rows of an integer format: codes and scales as MatrixView describes them, of code_bytes() and
// scale_bytes() (weight_format.h). Every table gives the same bytes. Throws ConfigError naming the
// row of a weight that is not finite or beyond what the format can hold.
void quantize_weights(const KernelTable& kernels, WeightFormat format, const float* weights,
                      int64_t rows, int64_t cols, uint8_t* codes, void* scales);
void quantize_weights(const KernelTable& kernels, WeightFormat format, const uint16_t* bf16_weights,
                      int64_t rows, int64_t cols, uint8_t* codes, void* scales);

// cos and sin of float32(position * inv_freq[i]), by range reduction and polynomials in double,
// rounded once.
void rotary_angles(int64_t position, const float* inv_freq, int64_t count, float* cosines,
                   float* sines);

// Philox4x32-10: counter (position, 0), key seed; the first two words make a double in [0, 1).
double philox_uniform(uint64_t seed, uint64_t position);

}  // namespace sparseflow
