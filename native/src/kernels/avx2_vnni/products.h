// Products of bytes with the 256-bit dot product: unsigned codes by signed inputs, exact in int32.
//
// The same instruction has two encodings: VEX (AVX-VNNI: client CPUs without AVX-512) and EVEX
// (AVX512-VNNI with VL).
#pragma once

#include "kernels/avx2/simd.h"

namespace sparseflow {
namespace {

SPARSEFLOW_INLINE __m256i dot_bytes(__m256i sum, __m256i codes, __m256i inputs) {
#if defined(__AVX512VNNI__)
  return _mm256_dpbusd_epi32(sum, codes, inputs);
#else
  return _mm256_dpbusd_avx_epi32(sum, codes, inputs);
#endif
}

// Sums of 64 products for each of 16 rows and kTokens tokens, eight inputs at a time: pair p has
// inputs 8p to 8p + 3 in a and the next four in b. x holds the eight inputs of the first token.
// sum(t, c) is the sum over (code - offset) * x, where c is the offset times the sum of x.
template <int kBits, int kTokens>
struct GroupDot {
  __m256i low[kTokens];
  __m256i high[kTokens];

  SPARSEFLOW_INLINE void start() {
    for (int t = 0; t < kTokens; ++t) {
      low[t] = high[t] = _mm256_setzero_si256();
    }
  }
  SPARSEFLOW_INLINE void add(int /*pair*/, Quads a, Quads b, const int8_t* x, int64_t stride) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const __m256i first = broadcast_four(x + t * stride);
      const __m256i second = broadcast_four(x + t * stride + 4);
      low[t] = dot_bytes(dot_bytes(low[t], a.lo, first), b.lo, second);
      high[t] = dot_bytes(dot_bytes(high[t], a.hi, first), b.hi, second);
    }
  }
  SPARSEFLOW_INLINE I32 sum(int t, int32_t correction) const {
    return sub(I32{low[t], high[t]}, set_int(correction));
  }
};

template <int kBits>
constexpr bool kIsWidePanel = false;
template <int kBits>
using PanelInput = int8_t;

template <int kBits>
SPARSEFLOW_INLINE void store_panel(uint8_t* panel, int pair, Quads a, Quads b) {
  store_byte_panel(panel, pair, a, b);
}

template <int kBits, int kInputs, int kTokens>
SPARSEFLOW_INLINE void panel_dot(const uint8_t* panel, const int8_t* x, int64_t stride, I32* sums) {
  __m256i low[kTokens];
  __m256i high[kTokens];
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
    low[t] = high[t] = _mm256_setzero_si256();
  }
#pragma GCC unroll 1
  for (int step = 0; step < kInputs / 4; ++step) {
    const __m256i lo = load_ints(panel + 64 * step);
    const __m256i hi = load_ints(panel + 64 * step + 32);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      const __m256i inputs = broadcast_four(x + t * stride + 4 * step);
      low[t] = dot_bytes(low[t], lo, inputs);
      high[t] = dot_bytes(high[t], hi, inputs);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
    sums[t] = {low[t], high[t]};
  }
}

}  // namespace
}  // namespace sparseflow
