// Sixteen float or int32 lanes in one AVX-512 register. Needs AVX-512 F, BW, DQ, VL and VNNI (and
// AVX2, FMA, F16C).
//
// native/tests compiles this file against SIMDe too, so that the table is checked on machines
// without AVX-512.
#pragma once

#if defined(SPARSEFLOW_EMULATE_AVX512)
#include "emulated_avx512.h"
#else
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>

#define SPARSEFLOW_INLINE inline __attribute__((always_inline))

namespace sparseflow {
namespace {

constexpr int kRowTile = 4;
constexpr int kTokenTile = 4;

struct F32 {
  __m512 v;
};
struct I32 {
  __m512i v;
};
struct Mask {
  __mmask16 m;
};

SPARSEFLOW_INLINE Mask first_lanes(int64_t n) {  // 0 <= n <= 16
  return {static_cast<__mmask16>((1U << n) - 1U)};
}

SPARSEFLOW_INLINE F32 set(float x) { return {_mm512_set1_ps(x)}; }
SPARSEFLOW_INLINE F32 zero() { return {_mm512_setzero_ps()}; }
SPARSEFLOW_INLINE F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
SPARSEFLOW_INLINE void store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
SPARSEFLOW_INLINE F32 load_first(const float* p, int64_t n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n).m, p)};
}
SPARSEFLOW_INLINE void store_first(float* p, F32 a, int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n).m, a.v);
}

SPARSEFLOW_INLINE F32 add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
SPARSEFLOW_INLINE F32 sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
SPARSEFLOW_INLINE F32 mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
SPARSEFLOW_INLINE F32 div(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
SPARSEFLOW_INLINE F32 sqrt(F32 a) { return {_mm512_sqrt_ps(a.v)}; }
SPARSEFLOW_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// vmaxps and vminps return the second operand unless the comparison holds.
SPARSEFLOW_INLINE F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
SPARSEFLOW_INLINE F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }

SPARSEFLOW_INLINE I32 bits(F32 a) { return {_mm512_castps_si512(a.v)}; }
SPARSEFLOW_INLINE F32 from_bits(I32 a) { return {_mm512_castsi512_ps(a.v)}; }
SPARSEFLOW_INLINE I32 set_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
SPARSEFLOW_INLINE I32 add(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
SPARSEFLOW_INLINE I32 sub(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
SPARSEFLOW_INLINE I32 bit_and(I32 a, I32 b) { return {_mm512_and_si512(a.v, b.v)}; }
SPARSEFLOW_INLINE I32 max(I32 a, I32 b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int kBits>
SPARSEFLOW_INLINE I32 shift_left(I32 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
SPARSEFLOW_INLINE I32 shift_right(I32 a) {  // arithmetic
  return {_mm512_srai_epi32(a.v, kBits)};
}
SPARSEFLOW_INLINE F32 to_float(I32 a) { return {_mm512_cvtepi32_ps(a.v)}; }

SPARSEFLOW_INLINE Mask greater(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
SPARSEFLOW_INLINE F32 select(Mask m, F32 a, F32 b) { return {_mm512_mask_blend_ps(m.m, b.v, a.v)}; }

SPARSEFLOW_INLINE __m256 upper_half(F32 a) {
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
}
SPARSEFLOW_INLINE float sum(F32 a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), upper_half(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
SPARSEFLOW_INLINE float maximum(F32 a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), upper_half(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

SPARSEFLOW_INLINE __m256i load_sixteen(const uint16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
SPARSEFLOW_INLINE F32 load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_sixteen(p)), 16))};
}
SPARSEFLOW_INLINE F32 load_half(const uint16_t* p) { return {_mm512_cvtph_ps(load_sixteen(p))}; }
SPARSEFLOW_INLINE void store_half(uint16_t* p, F32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Lowest byte of each lane.
SPARSEFLOW_INLINE void store_bytes(int8_t* p, I32 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

// Four bytes in each of 16 lanes.
struct Quads {
  __m512i v;
};
SPARSEFLOW_INLINE Quads load_quads(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
SPARSEFLOW_INLINE Quads low_nibbles(Quads a) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))};
}
SPARSEFLOW_INLINE Quads high_nibbles(Quads a) { return low_nibbles({_mm512_srli_epi16(a.v, 4)}); }
// Bits 2m and 2m + 1 of each byte of `high` as bits 4 and 5 of a nibble.
template <int kPart>
SPARSEFLOW_INLINE Quads with_high_bits(Quads nibbles, Quads high) {
  const __m512i moved = kPart == 0   ? _mm512_slli_epi16(high.v, 4)
                        : kPart == 1 ? _mm512_slli_epi16(high.v, 2)
                        : kPart == 2 ? high.v
                                     : _mm512_srli_epi16(high.v, 2);
  return {_mm512_or_si512(nibbles.v, _mm512_and_si512(moved, _mm512_set1_epi8(0x30)))};
}

// sum + codes * the same four inputs in each lane: unsigned by signed, exact. Written out, because
// a compiler that sees neighbouring inputs loads them together and takes them apart again.
SPARSEFLOW_INLINE __m512i dot_four(__m512i sum, __m512i codes, const int8_t* x) {
#if defined(SPARSEFLOW_EMULATE_AVX512)
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(four));
#else
  using Four = int32_t __attribute__((may_alias, aligned(1)));
  __asm__("vpdpbusd %2%{1to16%}, %1, %0"
          : "+v"(sum)
          : "v"(codes), "m"(*reinterpret_cast<const Four*>(x)));
  return sum;
#endif
}

// Sums of 64 products for each of 16 rows and kTokens tokens, eight inputs at a time: pair p has
// inputs 8p to 8p + 3 in a and the next four in b. x holds the eight inputs of the first token.
// sum(t, c) is the sum over (code - offset) * x, where c is the offset times the sum of x.
template <int kBits, int kTokens>
struct GroupDot {
  __m512i sums[kTokens];

  SPARSEFLOW_INLINE void start() {
    for (int t = 0; t < kTokens; ++t) {
      sums[t] = _mm512_setzero_si512();
    }
  }
  SPARSEFLOW_INLINE void add(int /*pair*/, Quads a, Quads b, const int8_t* x, int64_t stride) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      sums[t] = dot_four(dot_four(sums[t], a.v, x + t * stride), b.v, x + t * stride + 4);
    }
  }
  SPARSEFLOW_INLINE I32 sum(int t, int32_t correction) const {
    return sub(I32{sums[t]}, set_int(correction));
  }
};

// A panel holds 16 rows and 64 inputs ready for products with up to kPanelTokens tokens at a time:
// bytes [16][16][4] as they are unpacked.
constexpr int kPanelTokens = 8;
template <int kBits>
constexpr bool kIsWidePanel = false;
template <int kBits>
using PanelInput = int8_t;

template <int kBits>
SPARSEFLOW_INLINE void store_panel(uint8_t* panel, int pair, Quads a, Quads b) {
  _mm512_storeu_si512(panel + 128 * pair, a.v);
  _mm512_storeu_si512(panel + 128 * pair + 64, b.v);
}

template <int kBits, int kInputs, int kTokens>
SPARSEFLOW_INLINE void panel_dot(const uint8_t* panel, const int8_t* x, int64_t stride, I32* sums) {
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
    sums[t] = {_mm512_setzero_si512()};
  }
#pragma GCC unroll 4
  for (int step = 0; step < kInputs / 4; ++step) {
    const __m512i codes = _mm512_loadu_si512(panel + 64 * step);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      sums[t].v = dot_four(sums[t].v, codes, x + t * stride + 4 * step);
    }
  }
}

}  // namespace
}  // namespace sparseflow
