// AVX-512 intrinsics in plain code, so that the avx512_vnni table runs where the CPU has none.
// SIMDe gives most of them; the ones that its version 0.7 lacks are written out here after Intel's
// definitions. Compiled with AVX2, FMA and F16C, on which SIMDe builds the fused multiply-add (its
// fallback is not fused).
#pragma once

#include <immintrin.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <cstdint>
#include <cstring>

namespace emulated {

template <typename To, typename From>
To cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename T>
struct Lanes {
  T v[64 / sizeof(T)];
};

inline __m512 maskz_loadu_ps(__mmask16 mask, const float* p) {
  Lanes<float> r{};
  for (int i = 0; i < 16; ++i) {
    if (((mask >> i) & 1) != 0) {
      r.v[i] = p[i];
    }
  }
  return cast<__m512>(r);
}

inline void mask_storeu_ps(float* p, __mmask16 mask, __m512 a) {
  const auto x = cast<Lanes<float>>(a);
  for (int i = 0; i < 16; ++i) {
    if (((mask >> i) & 1) != 0) {
      p[i] = x.v[i];
    }
  }
}

inline __m512i cvtepu16_epi32(__m256i a) {
  uint16_t x[16];
  std::memcpy(x, &a, sizeof(x));
  Lanes<uint32_t> r;
  for (int i = 0; i < 16; ++i) {
    r.v[i] = x[i];
  }
  return cast<__m512i>(r);
}

inline __m512 cvtph_ps(__m256i a) {
  __m128i halves[2];
  std::memcpy(halves, &a, sizeof(halves));
  const __m256 r[2] = {_mm256_cvtph_ps(halves[0]), _mm256_cvtph_ps(halves[1])};
  __m512 result;
  std::memcpy(&result, r, sizeof(result));
  return result;
}

inline __m256i cvtps_ph(__m512 a) {  // round to nearest even
  __m256 halves[2];
  std::memcpy(halves, &a, sizeof(halves));
  const __m128i r[2] = {_mm256_cvtps_ph(halves[0], _MM_FROUND_TO_NEAREST_INT),
                        _mm256_cvtps_ph(halves[1], _MM_FROUND_TO_NEAREST_INT)};
  __m256i result;
  std::memcpy(&result, r, sizeof(result));
  return result;
}

inline __m128i cvtepi32_epi8(__m512i a) {  // truncates
  const auto x = cast<Lanes<uint32_t>>(a);
  uint8_t r[16];
  for (int i = 0; i < 16; ++i) {
    r[i] = static_cast<uint8_t>(x.v[i]);
  }
  __m128i result;
  std::memcpy(&result, r, sizeof(result));
  return result;
}

inline __m512 cvtepi32_ps(__m512i a) {
  const auto x = cast<Lanes<int32_t>>(a);
  Lanes<float> r;
  for (int i = 0; i < 16; ++i) {
    r.v[i] = static_cast<float>(x.v[i]);
  }
  return cast<__m512>(r);
}

inline __m512i srai_epi32(__m512i a, int bits) {
  auto x = cast<Lanes<int32_t>>(a);
  for (int32_t& lane : x.v) {
    lane >>= bits;
  }
  return cast<__m512i>(x);
}

// Four products of unsigned by signed bytes added to each int32, without saturation.
inline __m512i dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
  auto r = cast<Lanes<uint32_t>>(sum);
  const auto x = cast<Lanes<uint8_t>>(a);
  const auto y = cast<Lanes<int8_t>>(b);
  for (int i = 0; i < 64; ++i) {
    r.v[i / 4] += static_cast<uint32_t>(static_cast<int32_t>(x.v[i]) * y.v[i]);
  }
  return cast<__m512i>(r);
}

}  // namespace emulated

#define _mm512_maskz_loadu_ps(mask, p) emulated::maskz_loadu_ps(mask, p)
#define _mm512_mask_storeu_ps(p, mask, a) emulated::mask_storeu_ps(p, mask, a)
#define _mm512_cvtepu16_epi32(a) emulated::cvtepu16_epi32(a)
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps(a) emulated::cvtph_ps(a)
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(a, rounding) emulated::cvtps_ph(a)
#define _mm512_cvtepi32_epi8(a) emulated::cvtepi32_epi8(a)
#define _mm512_cvtepi32_ps(a) emulated::cvtepi32_ps(a)
#undef _mm512_srai_epi32
#define _mm512_srai_epi32(a, bits) emulated::srai_epi32(a, bits)
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32(sum, a, b) emulated::dpbusd_epi32(sum, a, b)
