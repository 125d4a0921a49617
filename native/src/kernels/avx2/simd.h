// Sixteen float or int32 lanes in two AVX2 registers. Needs AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#define SPARSEFLOW_INLINE inline __attribute__((always_inline))

namespace sparseflow {
namespace {

constexpr int kRowTile = 2;
constexpr int kTokenTile = 2;

struct F32 {
  __m256 lo, hi;
};
struct I32 {
  __m256i lo, hi;
};
struct Mask {
  __m256 lo, hi;
};

alignas(64) constexpr int32_t kLaneMasks[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                                -1, -1, -1, -1, -1, 0,  0,  0,  0,  0,  0,
                                                0,  0,  0,  0,  0,  0,  0,  0,  0,  0};

SPARSEFLOW_INLINE __m256i load_ints(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
SPARSEFLOW_INLINE void store_ints(void* p, __m256i a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), a);
}
SPARSEFLOW_INLINE I32 lane_mask(int64_t n) {
  const int32_t* p = kLaneMasks + 16 - n;
  return {load_ints(p), load_ints(p + 8)};
}

SPARSEFLOW_INLINE F32 set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
SPARSEFLOW_INLINE F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
SPARSEFLOW_INLINE F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
SPARSEFLOW_INLINE void store(float* p, F32 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
SPARSEFLOW_INLINE F32 load_first(const float* p, int64_t n) {
  const I32 m = lane_mask(n);
  return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
SPARSEFLOW_INLINE void store_first(float* p, F32 a, int64_t n) {
  const I32 m = lane_mask(n);
  _mm256_maskstore_ps(p, m.lo, a.lo);
  _mm256_maskstore_ps(p + 8, m.hi, a.hi);
}

SPARSEFLOW_INLINE F32 add(F32 a, F32 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
SPARSEFLOW_INLINE F32 sub(F32 a, F32 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
SPARSEFLOW_INLINE F32 mul(F32 a, F32 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
SPARSEFLOW_INLINE F32 div(F32 a, F32 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
SPARSEFLOW_INLINE F32 sqrt(F32 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
SPARSEFLOW_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// maxps and minps return the second operand unless the comparison holds.
SPARSEFLOW_INLINE F32 max(F32 a, F32 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
SPARSEFLOW_INLINE F32 min(F32 a, F32 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

SPARSEFLOW_INLINE I32 bits(F32 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
SPARSEFLOW_INLINE F32 from_bits(I32 a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
SPARSEFLOW_INLINE I32 set_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
SPARSEFLOW_INLINE I32 add(I32 a, I32 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
SPARSEFLOW_INLINE I32 sub(I32 a, I32 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
SPARSEFLOW_INLINE I32 bit_and(I32 a, I32 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
SPARSEFLOW_INLINE I32 max(I32 a, I32 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
template <int kBits>
SPARSEFLOW_INLINE I32 shift_left(I32 a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
SPARSEFLOW_INLINE I32 shift_right(I32 a) {  // arithmetic
  return {_mm256_srai_epi32(a.lo, kBits), _mm256_srai_epi32(a.hi, kBits)};
}
SPARSEFLOW_INLINE F32 to_float(I32 a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}

SPARSEFLOW_INLINE Mask greater(F32 a, F32 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)};
}
SPARSEFLOW_INLINE Mask first_lanes(int64_t n) {
  const F32 m = from_bits(lane_mask(n));
  return {m.lo, m.hi};
}
SPARSEFLOW_INLINE F32 select(Mask m, F32 a, F32 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}

SPARSEFLOW_INLINE float sum(F32 a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
SPARSEFLOW_INLINE float maximum(F32 a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

SPARSEFLOW_INLINE F32 load_bf16(const uint16_t* p) {
  const __m256i v = load_ints(p);
  const I32 wide = {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)),
                    _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1))};
  return from_bits(shift_left<16>(wide));
}
SPARSEFLOW_INLINE F32 load_half(const uint16_t* p) {
  const __m256i v = load_ints(p);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(v)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1))};
}
SPARSEFLOW_INLINE void store_half(uint16_t* p, F32 a) {
  const __m128i lo = _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT);
  const __m128i hi = _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), lo);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), hi);
}

// Lowest byte of each lane; lanes are in [-128, 127].
SPARSEFLOW_INLINE void store_bytes(int8_t* p, I32 a) {
  const __m128i lo =
      _mm_packs_epi32(_mm256_castsi256_si128(a.lo), _mm256_extracti128_si256(a.lo, 1));
  const __m128i hi =
      _mm_packs_epi32(_mm256_castsi256_si128(a.hi), _mm256_extracti128_si256(a.hi, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(lo, hi));
}

// Four bytes in each of 16 lanes.
struct Quads {
  __m256i lo, hi;
};
SPARSEFLOW_INLINE Quads load_quads(const uint8_t* p) { return {load_ints(p), load_ints(p + 32)}; }
SPARSEFLOW_INLINE Quads low_nibbles(Quads a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
SPARSEFLOW_INLINE Quads high_nibbles(Quads a) {
  return low_nibbles({_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)});
}
// Bits 2m and 2m + 1 of each byte of `high` as bits 4 and 5 of a nibble.
template <int kPart>
SPARSEFLOW_INLINE __m256i move_high_bits(__m256i nibbles, __m256i high) {
  const __m256i moved = kPart == 0   ? _mm256_slli_epi16(high, 4)
                        : kPart == 1 ? _mm256_slli_epi16(high, 2)
                        : kPart == 2 ? high
                                     : _mm256_srli_epi16(high, 2);
  return _mm256_or_si256(nibbles, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)));
}
template <int kPart>
SPARSEFLOW_INLINE Quads with_high_bits(Quads nibbles, Quads high) {
  return {move_high_bits<kPart>(nibbles.lo, high.lo), move_high_bits<kPart>(nibbles.hi, high.hi)};
}

SPARSEFLOW_INLINE __m256i broadcast_four(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return _mm256_set1_epi32(four);
}

// A panel holds 16 rows and 64 inputs ready for products with up to kPanelTokens tokens at a time.
constexpr int kPanelTokens = 6;

SPARSEFLOW_INLINE void store_byte_panel(uint8_t* panel, int pair, Quads a, Quads b) {
  uint8_t* out = panel + 128 * pair;
  store_ints(out, a.lo);
  store_ints(out + 32, a.hi);
  store_ints(out + 64, b.lo);
  store_ints(out + 96, b.hi);
}

}  // namespace
}  // namespace sparseflow
