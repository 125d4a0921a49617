// Products of bytes without VNNI: maddubs, whose int16 sums must not saturate.
#pragma once

#include "kernels/avx2/simd.h"

namespace sparseflow {
namespace {

// Sums of 64 products for each of 16 rows and kTokens tokens, eight inputs at a time: pair p has
// inputs 8p to 8p + 3 in a and the next four in b. x holds the eight inputs of the first token.
// sum(t, c) is the sum over (code - offset) * x, where c is the offset times the sum of x.
//
// A pair of 4-bit products is at most 3,810 and eight of them fit into an int16; two pairs of 6-bit
// products are at most 32,004. Codes of 8 bits are made signed: abs(w) <= 128 as unsigned times
// sign(x, w) is at most 32,512 a pair, so maddubs cannot saturate.
template <int kBits, int kTokens>
struct GroupDot {
  __m256i low[kTokens];
  __m256i high[kTokens];
  __m256i low16[kTokens];
  __m256i high16[kTokens];

  SPARSEFLOW_INLINE void start() {
    for (int t = 0; t < kTokens; ++t) {
      low[t] = high[t] = low16[t] = high16[t] = _mm256_setzero_si256();
    }
  }
  SPARSEFLOW_INLINE void add(int pair, Quads a, Quads b, const int8_t* x, int64_t stride) {
    if constexpr (kBits == 8) {
      add_signed(a, x, stride);
      add_signed(b, x + 4, stride);
      return;
    }
    const bool is_full = kBits == 6 || pair % 4 == 3;
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const __m256i first = broadcast_four(x + t * stride);
      const __m256i second = broadcast_four(x + t * stride + 4);
      const __m256i p =
          _mm256_add_epi16(_mm256_maddubs_epi16(a.lo, first), _mm256_maddubs_epi16(b.lo, second));
      const __m256i q =
          _mm256_add_epi16(_mm256_maddubs_epi16(a.hi, first), _mm256_maddubs_epi16(b.hi, second));
      low16[t] = kBits == 6 ? p : _mm256_add_epi16(low16[t], p);
      high16[t] = kBits == 6 ? q : _mm256_add_epi16(high16[t], q);
      if (is_full) flush(t);
    }
  }
  SPARSEFLOW_INLINE void flush(int t) {
    const __m256i ones = _mm256_set1_epi16(1);
    low[t] = _mm256_add_epi32(low[t], _mm256_madd_epi16(low16[t], ones));
    high[t] = _mm256_add_epi32(high[t], _mm256_madd_epi16(high16[t], ones));
    low16[t] = high16[t] = _mm256_setzero_si256();
  }
  SPARSEFLOW_INLINE void add_signed(Quads w, const int8_t* x, int64_t stride) {
    const __m256i offset = _mm256_set1_epi8(-128);
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i lo = _mm256_xor_si256(w.lo, offset);
    const __m256i hi = _mm256_xor_si256(w.hi, offset);
    const __m256i abs_lo = _mm256_abs_epi8(lo);
    const __m256i abs_hi = _mm256_abs_epi8(hi);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const __m256i inputs = broadcast_four(x + t * stride);
      const __m256i p = _mm256_maddubs_epi16(abs_lo, _mm256_sign_epi8(inputs, lo));
      const __m256i q = _mm256_maddubs_epi16(abs_hi, _mm256_sign_epi8(inputs, hi));
      low[t] = _mm256_add_epi32(low[t], _mm256_madd_epi16(p, ones));
      high[t] = _mm256_add_epi32(high[t], _mm256_madd_epi16(q, ones));
    }
  }
  SPARSEFLOW_INLINE I32 sum(int t, int32_t correction) const {
    if constexpr (kBits == 8) return {low[t], high[t]};
    return sub(I32{low[t], high[t]}, set_int(correction));
  }
};

// A panel holds bytes [16][16][4] as they are unpacked, or signed int16 [32][16][2] (wide), where
// codes of 8 bits need no correction and no int16 sum.
template <int kBits>
constexpr bool kIsWidePanel = kBits == 8;
template <bool kIsWide>
struct PanelInputOf {
  using Type = int8_t;
};
template <>
struct PanelInputOf<true> {
  using Type = int16_t;
};
template <int kBits>
using PanelInput = typename PanelInputOf<kIsWidePanel<kBits>>::Type;

// Bytes 4i + kFirst and 4i + kFirst + 1 of each lane, less 128, as two int16.
template <int kFirst>
SPARSEFLOW_INLINE __m256i signed_pairs(__m256i codes) {
  const __m256i pick = _mm256_set_epi8(
      -1, 13 + kFirst, -1, 12 + kFirst, -1, 9 + kFirst, -1, 8 + kFirst, -1, 5 + kFirst, -1,
      4 + kFirst, -1, 1 + kFirst, -1, kFirst, -1, 13 + kFirst, -1, 12 + kFirst, -1, 9 + kFirst, -1,
      8 + kFirst, -1, 5 + kFirst, -1, 4 + kFirst, -1, 1 + kFirst, -1, kFirst);
  return _mm256_sub_epi16(_mm256_shuffle_epi8(codes, pick), _mm256_set1_epi16(128));
}
SPARSEFLOW_INLINE void store_wide(uint8_t* out, Quads w) {
  store_ints(out, signed_pairs<0>(w.lo));
  store_ints(out + 32, signed_pairs<0>(w.hi));
  store_ints(out + 64, signed_pairs<2>(w.lo));
  store_ints(out + 96, signed_pairs<2>(w.hi));
}
template <int kBits>
SPARSEFLOW_INLINE void store_panel(uint8_t* panel, int pair, Quads a, Quads b) {
  if constexpr (kIsWidePanel<kBits>) {
    store_wide(panel + 256 * pair, a);
    store_wide(panel + 256 * pair + 128, b);
  } else {
    store_byte_panel(panel, pair, a, b);
  }
}
SPARSEFLOW_INLINE void widen(const int8_t* x, int64_t n, int16_t* out) {  // n: a multiple of 16
  for (int64_t i = 0; i < n; i += 16) {
    __m128i bytes;
    __builtin_memcpy(&bytes, x + i, 16);
    store_ints(out + i, _mm256_cvtepi8_epi16(bytes));
  }
}

// sum += x. Written out, because a compiler that sees through the sum of a tile first makes all
// products of a step, spills the sums, or copies each of them.
SPARSEFLOW_INLINE void accumulate_words(__m256i& sum, __m256i x) {
  __asm__("vpaddw %1, %0, %0" : "+x"(sum) : "x"(x));
}
SPARSEFLOW_INLINE void accumulate_ints(__m256i& sum, __m256i x) {
  __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(x));
}

template <int kInputs, int kTokens>
SPARSEFLOW_INLINE void wide_panel_dot(const uint8_t* panel, const int16_t* x, int64_t stride,
                                      I32* sums) {
  __m256i low[kTokens];
  __m256i high[kTokens];
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
    low[t] = high[t] = _mm256_setzero_si256();
  }
#pragma GCC unroll 1
  for (int k = 0; k < kInputs / 2; ++k) {
    const __m256i lo = load_ints(panel + 64 * k);
    const __m256i hi = load_ints(panel + 64 * k + 32);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      int32_t two;
      __builtin_memcpy(&two, x + t * stride + 2 * k, 4);
      const __m256i inputs = _mm256_set1_epi32(two);
      accumulate_ints(low[t], _mm256_madd_epi16(lo, inputs));
      accumulate_ints(high[t], _mm256_madd_epi16(hi, inputs));
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
    sums[t] = {low[t], high[t]};
  }
}

// Two steps of 6-bit codes fit into an int16.
template <int kTokens>
SPARSEFLOW_INLINE void six_bit_panel_dot(const uint8_t* panel, const int8_t* x, int64_t stride,
                                         I32* sums) {
  if constexpr (kTokens > 3) {  // or the sums would not fit into the registers
    six_bit_panel_dot<3>(panel, x, stride, sums);
    six_bit_panel_dot<kTokens - 3>(panel, x + 3 * stride, stride, sums + 3);
    return;
  }
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i low[kTokens];
  __m256i high[kTokens];
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
    low[t] = high[t] = _mm256_setzero_si256();
  }
#pragma GCC unroll 1
  for (int step = 0; step < 16; step += 2) {
    const uint8_t* codes = panel + 64 * step;
    const __m256i lo[2] = {load_ints(codes), load_ints(codes + 64)};
    const __m256i hi[2] = {load_ints(codes + 32), load_ints(codes + 96)};
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      const __m256i first = broadcast_four(x + t * stride + 4 * step);
      const __m256i second = broadcast_four(x + t * stride + 4 * step + 4);
      const __m256i p =
          _mm256_add_epi16(_mm256_maddubs_epi16(lo[0], first), _mm256_maddubs_epi16(lo[1], second));
      const __m256i q =
          _mm256_add_epi16(_mm256_maddubs_epi16(hi[0], first), _mm256_maddubs_epi16(hi[1], second));
      accumulate_ints(low[t], _mm256_madd_epi16(p, ones));
      accumulate_ints(high[t], _mm256_madd_epi16(q, ones));
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
    sums[t] = {low[t], high[t]};
  }
}

// Eight steps of 4-bit codes fit into an int16.
template <int kInputs, int kTokens>
SPARSEFLOW_INLINE void four_bit_panel_dot(const uint8_t* panel, const int8_t* x, int64_t stride,
                                          I32* sums) {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
    sums[t] = set_int(0);
  }
#pragma GCC unroll 1
  for (int begin = 0; begin < kInputs / 4; begin += 8) {
    __m256i low[kTokens];
    __m256i high[kTokens];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      low[t] = high[t] = _mm256_setzero_si256();
    }
#pragma GCC unroll 2
    for (int step = begin; step < begin + 8; ++step) {
      const __m256i lo = load_ints(panel + 64 * step);
      const __m256i hi = load_ints(panel + 64 * step + 32);
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) {
        const __m256i inputs = broadcast_four(x + t * stride + 4 * step);
        accumulate_words(low[t], _mm256_maddubs_epi16(lo, inputs));
        accumulate_words(high[t], _mm256_maddubs_epi16(hi, inputs));
      }
    }
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      sums[t] =
          add(sums[t], I32{_mm256_madd_epi16(low[t], ones), _mm256_madd_epi16(high[t], ones)});
    }
  }
}

template <int kBits, int kInputs, int kTokens>
SPARSEFLOW_INLINE void panel_dot(const uint8_t* panel, const PanelInput<kBits>* x, int64_t stride,
                                 I32* sums) {
  if constexpr (kIsWidePanel<kBits>) {
    wide_panel_dot<kInputs, kTokens>(panel, x, stride, sums);
  } else if constexpr (kBits == 6) {
    static_assert(kInputs == 64);
    six_bit_panel_dot<kTokens>(panel, x, stride, sums);
  } else {
    four_bit_panel_dot<kInputs, kTokens>(panel, x, stride, sums);
  }
}

}  // namespace
}  // namespace sparseflow
