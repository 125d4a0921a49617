// Products with float weights: 16 partial sums along the inputs.
#pragma once

namespace sparseflow {
namespace {

struct FloatWeights {
  using Element = float;
  static SPARSEFLOW_INLINE F32 lanes(const float* p) { return load(p); }
  static SPARSEFLOW_INLINE F32 first(const float* p, int64_t n) { return load_first(p, n); }
};
struct Bf16Weights {
  using Element = uint16_t;
  static SPARSEFLOW_INLINE F32 lanes(const uint16_t* p) { return load_bf16(p); }
  static SPARSEFLOW_INLINE F32 first(const uint16_t* p, int64_t n) {
    uint16_t tail[16];
    copy_first(p, n, tail);
    return load_bf16(tail);
  }
};
struct HalfWeights {
  using Element = uint16_t;
  static SPARSEFLOW_INLINE F32 lanes(const uint16_t* p) { return load_half(p); }
  static SPARSEFLOW_INLINE F32 first(const uint16_t* p, int64_t n) {
    uint16_t tail[16];
    copy_first(p, n, tail);
    return load_half(tail);
  }
};

// out[t * out_stride + r] = w row r . x row t. Each product is its own chain; tiles only share the
// loads.
template <typename Weights, int kRows, int kTokens>
SPARSEFLOW_INLINE void dot_tile(const typename Weights::Element* w, int64_t w_stride,
                                const float* x, int64_t x_stride, int64_t n, float* out,
                                int64_t out_stride) {
  F32 acc[kRows][kTokens];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) {
      acc[r][t] = zero();
    }
  }
  int64_t k = 0;
  for (; k + 16 <= n; k += 16) {
    F32 inputs[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      inputs[t] = load(x + t * x_stride + k);
    }
    for (int r = 0; r < kRows; ++r) {
      const F32 weights = Weights::lanes(w + r * w_stride + k);
      for (int t = 0; t < kTokens; ++t) {
        acc[r][t] = fma(weights, inputs[t], acc[r][t]);
      }
    }
  }
  if (k < n) {
    const Mask present = first_lanes(n - k);
    for (int r = 0; r < kRows; ++r) {
      const F32 weights = Weights::first(w + r * w_stride + k, n - k);
      for (int t = 0; t < kTokens; ++t) {
        const F32 inputs = load_first(x + t * x_stride + k, n - k);
        acc[r][t] = select(present, fma(weights, inputs, acc[r][t]), acc[r][t]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) {
      out[t * out_stride + r] = sum(acc[r][t]);
    }
  }
}

template <typename Weights, int kRows, int kTokens>
void dot_rows(const typename Weights::Element* w, int64_t num_rows, int64_t cols, const float* x,
              int64_t x_stride, float* out, int64_t out_stride) {
  int64_t r = 0;
  for (; r + kRows <= num_rows; r += kRows) {
    dot_tile<Weights, kRows, kTokens>(w + r * cols, cols, x, x_stride, cols, out + r, out_stride);
  }
  for (; r < num_rows; ++r) {
    dot_tile<Weights, 1, kTokens>(w + r * cols, cols, x, x_stride, cols, out + r, out_stride);
  }
}

template <typename Weights>
void float_matmul(const MatrixView& w, int64_t block_begin, int64_t block_end, const Activations& x,
                  int64_t num_tokens, float* out, int64_t out_stride) {
  for (int64_t block = block_begin; block < block_end; ++block) {
    const int64_t row = block * kLanes;
    const int64_t num_rows = w.rows - row < kLanes ? w.rows - row : kLanes;
    const auto* codes = static_cast<const typename Weights::Element*>(w.codes) + row * w.cols;
    int64_t t = 0;
    for (; t + kTokenTile <= num_tokens; t += kTokenTile) {
      dot_rows<Weights, kRowTile, kTokenTile>(codes, num_rows, w.cols, x.x + t * x.x_stride,
                                              x.x_stride, out + t * out_stride + row, out_stride);
    }
    for (; t < num_tokens; ++t) {
      dot_rows<Weights, 4, 1>(codes, num_rows, w.cols, x.x + t * x.x_stride, x.x_stride,
                              out + t * out_stride + row, out_stride);
    }
  }
}

}  // namespace
}  // namespace sparseflow
