// Sixteen float or int32 lanes in plain GCC/Clang vectors, with an emulated fused multiply-add
// where the baseline has none.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define SPARSEFLOW_INLINE inline __attribute__((always_inline))

namespace sparseflow {
namespace {

constexpr int kRowTile = 2;
constexpr int kTokenTile = 2;

using V4f = float __attribute__((vector_size(16)));
using V4i = int32_t __attribute__((vector_size(16)));
using V4u = uint32_t __attribute__((vector_size(16)));

struct F32 {
  V4f q[4];
};
struct I32 {
  V4i q[4];
};
struct Mask {
  V4i q[4];
};

// Expands an expression in i over the four quarters.
#define SPARSEFLOW_QUARTERS(Type, expression) \
  Type r;                                     \
  for (int i = 0; i < 4; ++i) {               \
    r.q[i] = (expression);                    \
  }                                           \
  return r

SPARSEFLOW_INLINE F32 set(float x) { SPARSEFLOW_QUARTERS(F32, (V4f{x, x, x, x})); }
SPARSEFLOW_INLINE F32 zero() { return set(0.0F); }
SPARSEFLOW_INLINE F32 load(const float* p) {
  F32 r;
  __builtin_memcpy(&r, p, 64);
  return r;
}
SPARSEFLOW_INLINE void store(float* p, F32 a) { __builtin_memcpy(p, &a, 64); }
SPARSEFLOW_INLINE F32 load_first(const float* p, int64_t n) {
  F32 r = zero();
  __builtin_memcpy(&r, p, static_cast<size_t>(n) * 4);
  return r;
}
SPARSEFLOW_INLINE void store_first(float* p, F32 a, int64_t n) {
  __builtin_memcpy(p, &a, static_cast<size_t>(n) * 4);
}

SPARSEFLOW_INLINE F32 add(F32 a, F32 b) { SPARSEFLOW_QUARTERS(F32, a.q[i] + b.q[i]); }
SPARSEFLOW_INLINE F32 sub(F32 a, F32 b) { SPARSEFLOW_QUARTERS(F32, a.q[i] - b.q[i]); }
SPARSEFLOW_INLINE F32 mul(F32 a, F32 b) { SPARSEFLOW_QUARTERS(F32, a.q[i] * b.q[i]); }
SPARSEFLOW_INLINE F32 div(F32 a, F32 b) { SPARSEFLOW_QUARTERS(F32, a.q[i] / b.q[i]); }

SPARSEFLOW_INLINE I32 bits(F32 a) { SPARSEFLOW_QUARTERS(I32, reinterpret_cast<V4i>(a.q[i])); }
SPARSEFLOW_INLINE F32 from_bits(I32 a) { SPARSEFLOW_QUARTERS(F32, reinterpret_cast<V4f>(a.q[i])); }
SPARSEFLOW_INLINE I32 set_int(int32_t x) { SPARSEFLOW_QUARTERS(I32, (V4i{x, x, x, x})); }
SPARSEFLOW_INLINE I32 add(I32 a, I32 b) {
  SPARSEFLOW_QUARTERS(
      I32, reinterpret_cast<V4i>(reinterpret_cast<V4u>(a.q[i]) + reinterpret_cast<V4u>(b.q[i])));
}
SPARSEFLOW_INLINE I32 sub(I32 a, I32 b) {
  SPARSEFLOW_QUARTERS(
      I32, reinterpret_cast<V4i>(reinterpret_cast<V4u>(a.q[i]) - reinterpret_cast<V4u>(b.q[i])));
}
SPARSEFLOW_INLINE I32 bit_and(I32 a, I32 b) { SPARSEFLOW_QUARTERS(I32, a.q[i] & b.q[i]); }
template <int kBits>
SPARSEFLOW_INLINE I32 shift_left(I32 a) {
  SPARSEFLOW_QUARTERS(I32, reinterpret_cast<V4i>(reinterpret_cast<V4u>(a.q[i]) << kBits));
}
template <int kBits>
SPARSEFLOW_INLINE I32 shift_right(I32 a) {  // arithmetic
  SPARSEFLOW_QUARTERS(I32, a.q[i] >> kBits);
}
SPARSEFLOW_INLINE F32 to_float(I32 a) {
  SPARSEFLOW_QUARTERS(F32, __builtin_convertvector(a.q[i], V4f));
}

SPARSEFLOW_INLINE Mask greater(F32 a, F32 b) { SPARSEFLOW_QUARTERS(Mask, a.q[i] > b.q[i]); }
SPARSEFLOW_INLINE Mask first_lanes(int64_t n) {
  const int32_t count = static_cast<int32_t>(n);
  SPARSEFLOW_QUARTERS(
      Mask, (V4i{4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3} < V4i{count, count, count, count}));
}
SPARSEFLOW_INLINE F32 select(Mask m, F32 a, F32 b) {
  SPARSEFLOW_QUARTERS(F32, reinterpret_cast<V4f>((reinterpret_cast<V4i>(a.q[i]) & m.q[i]) |
                                                 (reinterpret_cast<V4i>(b.q[i]) & ~m.q[i])));
}
SPARSEFLOW_INLINE F32 max(F32 a, F32 b) { return select(greater(a, b), a, b); }
SPARSEFLOW_INLINE F32 min(F32 a, F32 b) { return select(greater(b, a), a, b); }
SPARSEFLOW_INLINE I32 max(I32 a, I32 b) {
  I32 r;
  for (int i = 0; i < 4; ++i) {
    const V4i m = a.q[i] > b.q[i];
    r.q[i] = (a.q[i] & m) | (b.q[i] & ~m);
  }
  return r;
}

SPARSEFLOW_INLINE F32 sqrt(F32 a) {
#if defined(__SSE2__)
  SPARSEFLOW_QUARTERS(F32, (V4f)_mm_sqrt_ps((__m128)a.q[i]));
#else
  SPARSEFLOW_QUARTERS(F32, (V4f{__builtin_sqrtf(a.q[i][0]), __builtin_sqrtf(a.q[i][1]),
                                __builtin_sqrtf(a.q[i][2]), __builtin_sqrtf(a.q[i][3])}));
#endif
}

#if defined(__SSE2__)
// fma through double: the product is exact; the sum is rounded to odd, so that rounding it to float
// again is one rounding.
SPARSEFLOW_INLINE __m128d sum_to_odd(__m128d p, __m128d c) {
  const __m128d s = _mm_add_pd(p, c);
  const __m128d t = _mm_sub_pd(s, p);
  const __m128d error = _mm_add_pd(_mm_sub_pd(p, _mm_sub_pd(s, t)), _mm_sub_pd(c, t));
  const __m128d none = _mm_setzero_pd();
  const __m128i inexact =
      _mm_castpd_si128(_mm_or_pd(_mm_cmpgt_pd(error, none), _mm_cmplt_pd(error, none)));
  const __m128i sum_bits = _mm_castpd_si128(s);
  const __m128i one = _mm_set_epi32(0, 1, 0, 1);
  const __m128i even = _mm_sub_epi64(_mm_and_si128(sum_bits, one), one);
  const __m128i opposite = _mm_srli_epi64(_mm_xor_si128(sum_bits, _mm_castpd_si128(error)), 63);
  const __m128i step = _mm_sub_epi64(one, _mm_add_epi64(opposite, opposite));
  return _mm_castsi128_pd(
      _mm_add_epi64(sum_bits, _mm_and_si128(_mm_and_si128(inexact, even), step)));
}
SPARSEFLOW_INLINE V4f fma_quarter(V4f a, V4f b, V4f c) {
  const __m128 x = (__m128)a;
  const __m128 y = (__m128)b;
  const __m128 z = (__m128)c;
  const __m128d low = sum_to_odd(_mm_mul_pd(_mm_cvtps_pd(x), _mm_cvtps_pd(y)), _mm_cvtps_pd(z));
  const __m128d high =
      sum_to_odd(_mm_mul_pd(_mm_cvtps_pd(_mm_movehl_ps(x, x)), _mm_cvtps_pd(_mm_movehl_ps(y, y))),
                 _mm_cvtps_pd(_mm_movehl_ps(z, z)));
  return (V4f)_mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
}
#elif defined(__aarch64__) || defined(__FP_FAST_FMAF)
SPARSEFLOW_INLINE V4f fma_quarter(V4f a, V4f b, V4f c) {
  return V4f{__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]),
             __builtin_fmaf(a[2], b[2], c[2]), __builtin_fmaf(a[3], b[3], c[3])};
}
#else
#error "the portable kernels need SSE2 or a hardware fma"
#endif
// Not inlined: the emulation is long, and a call is little beside it.
__attribute__((noinline)) F32 fma(F32 a, F32 b, F32 c) {
  SPARSEFLOW_QUARTERS(F32, fma_quarter(a.q[i], b.q[i], c.q[i]));
}

SPARSEFLOW_INLINE float sum(F32 a) {
  const V4f v = (a.q[0] + a.q[2]) + (a.q[1] + a.q[3]);
  return (v[0] + v[2]) + (v[1] + v[3]);
}
SPARSEFLOW_INLINE float larger(float a, float b) { return a > b ? a : b; }
SPARSEFLOW_INLINE float maximum(F32 a) {
  F32 h{{a.q[2], a.q[3], a.q[2], a.q[3]}};
  const F32 b = max(a, h);
  const F32 c = max(b, F32{{b.q[1], b.q[1], b.q[1], b.q[1]}});
  return larger(larger(c.q[0][0], c.q[0][2]), larger(c.q[0][1], c.q[0][3]));
}

SPARSEFLOW_INLINE F32 load_bf16(const uint16_t* p) {
  I32 r;
  for (int i = 0; i < 4; ++i) {
    const V4u v = {p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]};
    r.q[i] = reinterpret_cast<V4i>(v << 16);
  }
  return from_bits(r);
}

SPARSEFLOW_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000U) << 16;
  const uint32_t magnitude = h & 0x7FFFU;
  uint32_t u;
  if (magnitude >= 0x7C00U) {
    u = (magnitude << 13) + 0x70000000U;
  } else if (magnitude >= 0x0400U) {
    u = (magnitude << 13) + 0x38000000U;
  } else {
    const float value = static_cast<float>(magnitude) * 0x1p-24F;
    __builtin_memcpy(&u, &value, 4);
  }
  u |= sign;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
SPARSEFLOW_INLINE uint16_t float_to_half(float f) {  // round to nearest even
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  const uint32_t sign = (u >> 16) & 0x8000U;
  const uint32_t magnitude = u & 0x7FFFFFFFU;
  uint32_t h;
  if (magnitude > 0x7F800000U) {
    h = 0x7E00U | ((magnitude >> 13) & 0x3FFU);
  } else if (magnitude >= 0x477FF000U) {  // 65520 and above
    h = 0x7C00U;
  } else if (magnitude >= 0x38800000U) {
    const uint32_t rebased = magnitude - 0x38000000U;
    h = (rebased + 0xFFFU + ((rebased >> 13) & 1U)) >> 13;
  } else {
    // Adding 2^-1 leaves the subnormal half in the low bits, rounded to nearest even by the
    // addition.
    float value;
    __builtin_memcpy(&value, &magnitude, 4);
    value += 0.5F;
    uint32_t v;
    __builtin_memcpy(&v, &value, 4);
    h = v - 0x3F000000U;
  }
  return static_cast<uint16_t>(sign | h);
}
SPARSEFLOW_INLINE F32 load_half(const uint16_t* p) {
  float r[16];
  for (int i = 0; i < 16; ++i) {
    r[i] = half_to_float(p[i]);
  }
  return load(r);
}
SPARSEFLOW_INLINE void store_half(uint16_t* p, F32 a) {
  float x[16];
  store(x, a);
  for (int i = 0; i < 16; ++i) {
    p[i] = float_to_half(x[i]);
  }
}

// Lowest byte of each lane.
SPARSEFLOW_INLINE void store_bytes(int8_t* p, I32 a) {
  int32_t x[16];
  __builtin_memcpy(x, &a, 64);
  for (int i = 0; i < 16; ++i) {
    p[i] = static_cast<int8_t>(x[i]);
  }
}

// Four bytes in each of 16 lanes.
struct Quads {
  uint64_t words[8];
};
SPARSEFLOW_INLINE Quads load_quads(const uint8_t* p) {
  Quads result;
  __builtin_memcpy(&result, p, 64);
  return result;
}
SPARSEFLOW_INLINE Quads low_nibbles(Quads a) {
  for (uint64_t& word : a.words) {
    word &= 0x0F0F0F0F0F0F0F0FU;
  }
  return a;
}
SPARSEFLOW_INLINE Quads high_nibbles(Quads a) {
  for (uint64_t& word : a.words) {
    word >>= 4;
  }
  return low_nibbles(a);
}
// Bits 2m and 2m + 1 of each byte of `high` as bits 4 and 5 of a nibble.
template <int kPart>
SPARSEFLOW_INLINE Quads with_high_bits(Quads nibbles, const Quads& high) {
  for (int i = 0; i < 8; ++i) {
    const uint64_t bits = (high.words[i] >> (2 * kPart)) & 0x0303030303030303U;
    nibbles.words[i] |= bits << 4;
  }
  return nibbles;
}

// Sums of 64 products for each of 16 rows and kTokens tokens, eight inputs at a time: pair p has
// inputs 8p to 8p + 3 in a and the next four in b. x holds the eight inputs of the first token.
// sum(t, c) is the sum over (code - offset) * x, where c is the offset times the sum of x.
#if defined(__SSE2__)
// Codes and inputs as int16: pmaddwd leaves two partial sums a row, two rows a register.
template <int kBits, int kTokens>
struct GroupDot {
  __m128i sums[kTokens][8];

  SPARSEFLOW_INLINE void start() {
    for (auto& token : sums) {
      for (__m128i& two_rows : token) {
        two_rows = _mm_setzero_si128();
      }
    }
  }
  SPARSEFLOW_INLINE void add(int /*pair*/, const Quads& a, const Quads& b, const int8_t* x,
                             int64_t stride) {
    add_four(a, x, stride);
    add_four(b, x + 4, stride);
  }
  SPARSEFLOW_INLINE void add_four(const Quads& w, const int8_t* x, int64_t stride) {
    const __m128i none = _mm_setzero_si128();
    __m128i inputs[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      int32_t four;
      __builtin_memcpy(&four, x + t * stride, 4);
      const __m128i bytes = _mm_cvtsi32_si128(four);
      const __m128i words = _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
      inputs[t] = _mm_unpacklo_epi64(words, words);
    }
    for (int i = 0; i < 4; ++i) {
      __m128i codes;
      __builtin_memcpy(&codes, w.words + 2 * i, 16);
      const __m128i low = _mm_unpacklo_epi8(codes, none);
      const __m128i high = _mm_unpackhi_epi8(codes, none);
      for (int t = 0; t < kTokens; ++t) {
        sums[t][2 * i] = _mm_add_epi32(sums[t][2 * i], _mm_madd_epi16(low, inputs[t]));
        sums[t][2 * i + 1] = _mm_add_epi32(sums[t][2 * i + 1], _mm_madd_epi16(high, inputs[t]));
      }
    }
  }
  SPARSEFLOW_INLINE I32 sum(int t, int32_t correction) const {
    I32 result;
    for (int i = 0; i < 4; ++i) {
      const __m128 a = _mm_castsi128_ps(sums[t][2 * i]);
      const __m128 b = _mm_castsi128_ps(sums[t][2 * i + 1]);
      const __m128i even = _mm_castps_si128(_mm_shuffle_ps(a, b, 0x88));
      const __m128i odd = _mm_castps_si128(_mm_shuffle_ps(a, b, 0xDD));
      result.q[i] = (V4i)_mm_add_epi32(even, odd);
    }
    return sub(result, set_int(correction));
  }
};
#else
template <int kBits, int kTokens>
struct GroupDot {
  int32_t sums[kTokens][16];

  SPARSEFLOW_INLINE void start() { __builtin_memset(sums, 0, sizeof(sums)); }
  SPARSEFLOW_INLINE void add(int /*pair*/, const Quads& a, const Quads& b, const int8_t* x,
                             int64_t stride) {
    uint8_t codes[2][64];
    __builtin_memcpy(codes[0], &a, 64);
    __builtin_memcpy(codes[1], &b, 64);
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < 16; ++r) {
        for (int k = 0; k < 8; ++k) {
          sums[t][r] += codes[k / 4][4 * r + k % 4] * x[t * stride + k];
        }
      }
    }
  }
  SPARSEFLOW_INLINE I32 sum(int t, int32_t correction) const {
    I32 result;
    __builtin_memcpy(&result, sums[t], 64);
    return sub(result, set_int(correction));
  }
};
#endif

// A panel holds 16 rows and 64 inputs ready for products with up to kPanelTokens tokens at a time,
// as int16 [32][16][2]: pmaddwd then leaves one sum a row.
constexpr int kPanelTokens = 4;
template <int kBits>
constexpr bool kIsWidePanel = true;
template <int kBits>
using PanelInput = int16_t;

template <int kBits>
SPARSEFLOW_INLINE void store_panel(uint8_t* panel, int pair, const Quads& a, const Quads& b) {
  constexpr int16_t kOffset = int16_t{1} << (kBits - 1);
  int16_t out[4][16][2];
  uint8_t codes[2][16][4];
  __builtin_memcpy(codes[0], &a, 64);
  __builtin_memcpy(codes[1], &b, 64);
  for (int two = 0; two < 4; ++two) {
    for (int r = 0; r < 16; ++r) {
      for (int j = 0; j < 2; ++j) {
        out[two][r][j] = static_cast<int16_t>(codes[two / 2][r][two % 2 * 2 + j] - kOffset);
      }
    }
  }
  __builtin_memcpy(panel + 256 * pair, out, 256);
}
SPARSEFLOW_INLINE void widen(const int8_t* x, int64_t n, int16_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = x[i];
  }
}

template <int kBits, int kInputs, int kTokens>
SPARSEFLOW_INLINE void panel_dot(const uint8_t* panel, const int16_t* x, int64_t stride,
                                 I32* sums) {
  for (int t = 0; t < kTokens; ++t) {
    sums[t] = set_int(0);
  }
  for (int k = 0; k < kInputs / 2; ++k) {
    for (int t = 0; t < kTokens; ++t) {
#if defined(__SSE2__)
      int32_t two;
      __builtin_memcpy(&two, x + t * stride + 2 * k, 4);
      const __m128i inputs = _mm_set1_epi32(two);
      for (int i = 0; i < 4; ++i) {
        __m128i codes;
        __builtin_memcpy(&codes, panel + 64 * k + 16 * i, 16);
        sums[t].q[i] += (V4i)_mm_madd_epi16(codes, inputs);
      }
#else
      int16_t codes[16][2];
      __builtin_memcpy(codes, panel + 64 * k, 64);
      for (int r = 0; r < 16; ++r) {
        sums[t].q[r / 4][r % 4] +=
            codes[r][0] * x[t * stride + 2 * k] + codes[r][1] * x[t * stride + 2 * k + 1];
      }
#endif
    }
  }
}

}  // namespace
}  // namespace sparseflow
