// The gated delta rule of one value head, and the short convolution before it. A lane is a value
// channel or a channel.
#pragma once

namespace sparseflow {
namespace {

// Tokens of kBlocks * 16 value channels: their part of the state stays in the first-level cache.
template <int kBlocks>
void delta_columns(const DeltaArgs& args, int64_t column, int64_t width) {
  const bool full = width == kBlocks * kLanes;
  const auto get = [full, width](const float* p, int b) {
    return full ? load(p + 16 * b) : load_first(p + 16 * b, width - 16 * b);
  };
  const auto put = [full, width](float* p, int b, F32 a) {
    full ? store(p + 16 * b, a) : store_first(p + 16 * b, a, width - 16 * b);
  };
  float* state = args.state + column;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const float* query = args.query + t * args.qkv_stride;
    const float* key = args.key + t * args.qkv_stride;
    const F32 decay = set(args.decay[t * args.gate_stride]);
    const F32 beta = set(args.beta[t * args.gate_stride]);
    F32 memory[kBlocks];
    for (int b = 0; b < kBlocks; ++b) {
      memory[b] = zero();
    }
    for (int64_t i = 0; i < args.key_dim; ++i) {
      const float* row = state + i * args.value_dim;
      const F32 k = set(key[i]);
      for (int b = 0; b < kBlocks; ++b) {
        memory[b] = fma(mul(get(row, b), decay), k, memory[b]);
      }
    }
    F32 delta[kBlocks];
    F32 output[kBlocks];
    for (int b = 0; b < kBlocks; ++b) {
      const F32 value = get(args.value + t * args.qkv_stride + column, b);
      delta[b] = mul(sub(value, memory[b]), beta);
      output[b] = zero();
    }
    for (int64_t i = 0; i < args.key_dim; ++i) {
      float* row = state + i * args.value_dim;
      const F32 k = set(key[i]);
      const F32 q = set(query[i]);
      for (int b = 0; b < kBlocks; ++b) {
        const F32 s = fma(k, delta[b], mul(get(row, b), decay));
        output[b] = fma(s, q, output[b]);
        put(row, b, s);
      }
    }
    for (int b = 0; b < kBlocks; ++b) {
      put(args.out + t * args.out_stride + column, b, output[b]);
    }
  }
}

void gated_delta_kernel(const DeltaArgs& args) noexcept {
  int64_t column = 0;
  for (; column + 4 * kLanes <= args.value_dim; column += 4 * kLanes) {
    delta_columns<4>(args, column, 4 * kLanes);
  }
  for (; column < args.value_dim; column += kLanes) {
    const int64_t left = args.value_dim - column;
    delta_columns<1>(args, column, left < kLanes ? left : kLanes);
  }
}

// Sixteen channels over all tokens; the last kernel - 1 inputs stay in vectors.
SPARSEFLOW_INLINE void conv_channels(const float* x, int64_t num_tokens, int64_t stride,
                                     const float* weight, int64_t kernel, int64_t width,
                                     float* tail, float* out) {
  F32 taps[kMaxTaps];
  F32 past[kMaxTaps];
  for (int64_t j = 0; j < kernel; ++j) {
    float lanes[16] = {};
    for (int64_t c = 0; c < width; ++c) {
      lanes[c] = weight[c * kernel + j];
    }
    taps[j] = load(lanes);
  }
  for (int64_t j = 0; j + 1 < kernel; ++j) {
    float lanes[16] = {};
    for (int64_t c = 0; c < width; ++c) {
      lanes[c] = tail[c * (kernel - 1) + j];
    }
    past[j] = load(lanes);
  }
  for (int64_t t = 0; t < num_tokens; ++t) {
    past[kernel - 1] = load_first(x + t * stride, width);
    F32 acc = zero();
    for (int64_t j = 0; j < kernel; ++j) {
      acc = fma(taps[j], past[j], acc);
    }
    store_first(out + t * stride, silu_lanes(acc), width);
    for (int64_t j = 0; j + 1 < kernel; ++j) {
      past[j] = past[j + 1];
    }
  }
  for (int64_t j = 0; j + 1 < kernel; ++j) {
    float lanes[16];
    store(lanes, past[j]);
    for (int64_t c = 0; c < width; ++c) {
      tail[c * (kernel - 1) + j] = lanes[c];
    }
  }
}

void conv_silu_kernel(const float* x, int64_t num_tokens, int64_t stride, const float* weight,
                      int64_t kernel, int64_t channel_begin, int64_t channel_end, float* tail,
                      float* out) noexcept {
  for (int64_t c = channel_begin; c < channel_end; c += kLanes) {
    const int64_t left = channel_end - c;
    conv_channels(x + c, num_tokens, stride, weight + c * kernel, kernel,
                  left < kLanes ? left : kLanes, tail + c * (kernel - 1), out + c);
  }
}

}  // namespace
}  // namespace sparseflow
