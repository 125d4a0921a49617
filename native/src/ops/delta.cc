#include <algorithm>
#include <cstdint>

#include "sparseflow/ops.h"

namespace sparseflow {
namespace {

constexpr int64_t kConvChannels = 128;  // channels of an item
constexpr float kL2Eps = 1e-6F;

// Per token: queries and keys normalised in place (queries scaled too), decay and beta of every
// value head.
void prepare_token(const KernelTable& kernels, const DeltaLayer& layer, const DeltaInputs& inputs,
                   int64_t t, float* mixed, float* decay, float* beta) {
  const int64_t heads = layer.num_value_heads;
  float* row = mixed + t * layer.conv_dim();
  for (int64_t h = 0; h < 2 * layer.num_key_heads; ++h) {
    float* x = row + h * layer.key_dim;
    kernels.l2_norm(x, layer.key_dim, kL2Eps, x);
    if (h < layer.num_key_heads) {
      for (int64_t i = 0; i < layer.key_dim; ++i) {
        x[i] *= layer.scale;
      }
    }
  }
  float* g = decay + t * heads;
  kernels.add(inputs.a + t * heads, layer.dt_bias.data(), heads, g);
  kernels.softplus(g, heads, g);
  kernels.multiply(layer.neg_exp_a.data(), g, heads, g);
  kernels.exp(g, heads, g);
  kernels.sigmoid(inputs.b + t * heads, heads, beta + t * heads);
}

void run_head(const KernelTable& kernels, const DeltaLayer& layer, int64_t num_tokens, int64_t head,
              const float* mixed, const float* decay, const float* beta, float* state, float* out) {
  const int64_t key_head = head / (layer.num_value_heads / layer.num_key_heads);
  const int64_t key_channels = layer.num_key_heads * layer.key_dim;
  DeltaArgs args{};
  args.query = mixed + key_head * layer.key_dim;
  args.key = args.query + key_channels;
  args.value = mixed + 2 * key_channels + head * layer.value_dim;
  args.qkv_stride = layer.conv_dim();
  args.decay = decay + head;
  args.beta = beta + head;
  args.gate_stride = layer.num_value_heads;
  args.num_tokens = num_tokens;
  args.key_dim = layer.key_dim;
  args.value_dim = layer.value_dim;
  args.state = state + head * layer.key_dim * layer.value_dim;
  args.out = out + head * layer.value_dim;
  args.out_stride = layer.num_value_heads * layer.value_dim;
  kernels.gated_delta(args);
}

}  // namespace

void gated_delta(Runtime& runtime, const DeltaLayer& layer, const DeltaInputs& inputs,
                 int64_t num_tokens, float* conv_tail, float* state, float* out) {
  const KernelTable& kernels = runtime.kernels();
  const int64_t channels = layer.conv_dim();
  const int64_t heads = layer.num_value_heads;
  float* mixed = runtime.scratch().floats(num_tokens * channels);
  float* decay = runtime.scratch().floats(num_tokens * heads);
  float* beta = runtime.scratch().floats(num_tokens * heads);

  runtime.pool().parallel_for(
      (channels + kConvChannels - 1) / kConvChannels, [&](int64_t item, int) {
        const int64_t begin = item * kConvChannels;
        kernels.conv_silu(inputs.qkv, num_tokens, channels, layer.conv_weight.data(), layer.kernel,
                          begin, std::min(begin + kConvChannels, channels), conv_tail, mixed);
      });
  runtime.pool().parallel_for(num_tokens, [&](int64_t t, int) {
    prepare_token(kernels, layer, inputs, t, mixed, decay, beta);
  });
  runtime.pool().parallel_for(heads, [&](int64_t head, int) {
    run_head(kernels, layer, num_tokens, head, mixed, decay, beta, state, out);
  });
  // (norm(out) * weight) * silu(z)
  float* gate = runtime.scratch().floats(num_tokens * heads * layer.value_dim);
  runtime.pool().parallel_for(num_tokens, [&](int64_t t, int) {
    const int64_t width = heads * layer.value_dim;
    float* row = out + t * width;
    kernels.silu(inputs.z + t * width, width, gate + t * width);
    for (int64_t head = 0; head < heads; ++head) {
      float* x = row + head * layer.value_dim;
      kernels.rms_norm(x, layer.norm_weight.data(), layer.value_dim, layer.eps, x);
    }
    kernels.multiply(row, gate + t * width, width, row);
  });
}

}  // namespace sparseflow
