#include "bench/byte_loops.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sparseflow {
namespace {

uint64_t read_plain(const std::byte* data, int64_t n) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i < n; i += 64) {
    uint64_t words[8];
    std::memcpy(words, data + i, sizeof words);
    for (int j = 0; j < 8; ++j) sums[j] ^= words[j];
  }
  return sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
}

uint64_t dot_plain(const std::byte* data, int64_t n) {
  uint32_t sums[16] = {};
  for (int64_t i = 0; i < n; i += 16) {
    for (int j = 0; j < 16; ++j) sums[j] += std::to_integer<uint32_t>(data[i + j]) * 3U;
  }
  uint64_t sum = 0;
  for (const uint32_t part : sums) sum += part;
  return sum;
}

#if !defined(__x86_64__)

uint64_t macs_plain(int64_t rounds) {
  uint32_t sums[16] = {};
  uint32_t factor = 3;
  for (int64_t i = 0; i < rounds; ++i) {
    __asm__ volatile("" : "+r"(factor));
    for (int j = 0; j < 16; ++j) sums[j] += factor * static_cast<uint32_t>(j);
  }
  uint64_t sum = 0;
  for (const uint32_t part : sums) sum += part;
  return sum;
}
constexpr int64_t kPlainMacs = 16;

#else

#define TARGET(features) __attribute__((target(features)))

constexpr int kAccumulators = 8;

uint64_t fold(const uint64_t* words, int count) {
  uint64_t sum = 0;
  for (int i = 0; i < count; ++i) sum += words[i];
  return sum;
}

TARGET("avx2") uint64_t read_avx2(const std::byte* data, int64_t n) {
  __m256i acc[kAccumulators];
  for (auto& a : acc) a = _mm256_setzero_si256();
  for (int64_t i = 0; i < n; i += 32 * kAccumulators) {
    for (int j = 0; j < kAccumulators; ++j) {
      const auto* from = reinterpret_cast<const __m256i*>(data + i + 32 * j);
      acc[j] = _mm256_xor_si256(acc[j], _mm256_load_si256(from));
    }
  }
  alignas(32) uint64_t words[4 * kAccumulators];
  for (int j = 0; j < kAccumulators; ++j) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(words + 4 * j), acc[j]);
  }
  return fold(words, 4 * kAccumulators);
}

TARGET("avx2") uint64_t dot_avx2(const std::byte* data, int64_t n) {
  __m256i acc[kAccumulators];
  for (auto& a : acc) a = _mm256_setzero_si256();
  const __m256i x = _mm256_set1_epi8(3);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < n; i += 32 * kAccumulators) {
    for (int j = 0; j < kAccumulators; ++j) {
      const auto* from = reinterpret_cast<const __m256i*>(data + i + 32 * j);
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_load_si256(from), x);
      acc[j] = _mm256_add_epi32(acc[j], _mm256_madd_epi16(pairs, ones));
    }
  }
  alignas(32) uint64_t words[4 * kAccumulators];
  for (int j = 0; j < kAccumulators; ++j) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(words + 4 * j), acc[j]);
  }
  return fold(words, 4 * kAccumulators);
}

TARGET("avx512f") uint64_t read_avx512(const std::byte* data, int64_t n) {
  __m512i acc[kAccumulators];
  for (auto& a : acc) a = _mm512_setzero_si512();
  for (int64_t i = 0; i < n; i += 64 * kAccumulators) {
    for (int j = 0; j < kAccumulators; ++j) {
      acc[j] = _mm512_xor_si512(acc[j], _mm512_load_si512(data + i + 64 * j));
    }
  }
  alignas(64) uint64_t words[8 * kAccumulators];
  for (int j = 0; j < kAccumulators; ++j) _mm512_store_si512(words + 8 * j, acc[j]);
  return fold(words, 8 * kAccumulators);
}

TARGET("avx512f,avx512bw,avx512vnni")
uint64_t dot_avx512(const std::byte* data, int64_t n) {
  __m512i acc[kAccumulators];
  for (auto& a : acc) a = _mm512_setzero_si512();
  const __m512i x = _mm512_set1_epi8(3);
  for (int64_t i = 0; i < n; i += 64 * kAccumulators) {
    for (int j = 0; j < kAccumulators; ++j) {
      acc[j] = _mm512_dpbusd_epi32(acc[j], _mm512_load_si512(data + i + 64 * j), x);
    }
  }
  alignas(64) uint64_t words[8 * kAccumulators];
  for (int j = 0; j < kAccumulators; ++j) _mm512_store_si512(words + 8 * j, acc[j]);
  return fold(words, 8 * kAccumulators);
}

// One operand passes through an empty asm, so that no product can be taken out of the loop.
constexpr int kMacChains = 12;
constexpr int kShortChains = 6;  // as many as fit into the 16 registers of AVX2

// What portable code becomes on every x86-64: pairs of 16-bit products.
uint64_t macs_sse2(int64_t rounds) {
  __m128i acc[kShortChains];
  for (auto& a : acc) a = _mm_setzero_si128();
  __m128i weights = _mm_set1_epi16(5);
  const __m128i x = _mm_set1_epi16(3);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& a : acc) {
      __asm__ volatile("" : "+x"(weights));
      a = _mm_add_epi32(a, _mm_madd_epi16(weights, x));
    }
  }
  alignas(16) uint64_t words[2 * kShortChains];
  for (int j = 0; j < kShortChains; ++j) {
    _mm_store_si128(reinterpret_cast<__m128i*>(words + 2 * j), acc[j]);
  }
  return fold(words, 2 * kShortChains);
}

TARGET("avx2") uint64_t macs_avx2(int64_t rounds) {
  __m256i acc[kShortChains];
  for (auto& a : acc) a = _mm256_setzero_si256();
  __m256i weights = _mm256_set1_epi8(5);
  const __m256i x = _mm256_set1_epi8(3);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& a : acc) {
      __asm__ volatile("" : "+x"(weights));
      const __m256i pairs = _mm256_maddubs_epi16(weights, x);
      a = _mm256_add_epi32(a, _mm256_madd_epi16(pairs, ones));
    }
  }
  alignas(32) uint64_t words[4 * kShortChains];
  for (int j = 0; j < kShortChains; ++j) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(words + 4 * j), acc[j]);
  }
  return fold(words, 4 * kShortChains);
}

TARGET("avx2,avx512vl,avx512vnni") uint64_t macs_avx2_vnni(int64_t rounds) {
  __m256i acc[kShortChains];
  for (auto& a : acc) a = _mm256_setzero_si256();
  __m256i weights = _mm256_set1_epi8(5);
  const __m256i x = _mm256_set1_epi8(3);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& a : acc) {
      __asm__ volatile("" : "+x"(weights));
      a = _mm256_dpbusd_epi32(a, weights, x);
    }
  }
  alignas(32) uint64_t words[4 * kShortChains];
  for (int j = 0; j < kShortChains; ++j) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(words + 4 * j), acc[j]);
  }
  return fold(words, 4 * kShortChains);
}

// The same in the encoding of CPUs without AVX-512.
TARGET("avx2,avxvnni") uint64_t macs_avx_vnni(int64_t rounds) {
  __m256i acc[kShortChains];
  for (auto& a : acc) a = _mm256_setzero_si256();
  __m256i weights = _mm256_set1_epi8(5);
  const __m256i x = _mm256_set1_epi8(3);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& a : acc) {
      __asm__ volatile("" : "+x"(weights));
      a = _mm256_dpbusd_avx_epi32(a, weights, x);
    }
  }
  alignas(32) uint64_t words[4 * kShortChains];
  for (int j = 0; j < kShortChains; ++j) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(words + 4 * j), acc[j]);
  }
  return fold(words, 4 * kShortChains);
}

TARGET("avx512f,avx512bw,avx512vnni") uint64_t macs_avx512(int64_t rounds) {
  __m512i acc[kMacChains];
  for (auto& a : acc) a = _mm512_setzero_si512();
  __m512i weights = _mm512_set1_epi8(5);
  const __m512i x = _mm512_set1_epi8(3);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& a : acc) {
      __asm__ volatile("" : "+v"(weights));
      a = _mm512_dpbusd_epi32(a, weights, x);
    }
  }
  alignas(64) uint64_t words[8 * kMacChains];
  for (int j = 0; j < kMacChains; ++j) _mm512_store_si512(words + 8 * j, acc[j]);
  return fold(words, 8 * kMacChains);
}

bool has_avx2() { return __builtin_cpu_supports("avx2") != 0; }
bool has_avx512() { return __builtin_cpu_supports("avx512f") != 0; }
bool has_avx_vnni() { return __builtin_cpu_supports("avxvnni") != 0; }
bool has_vnni() {
  return __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0;
}

#endif

}  // namespace

#if defined(__x86_64__)

ByteLoop read_loop() noexcept {
  return has_avx512() ? read_avx512 : has_avx2() ? read_avx2 : read_plain;
}

ByteLoop dot_loop() noexcept { return has_vnni() ? dot_avx512 : has_avx2() ? dot_avx2 : dot_plain; }

MacLoop mac_loop(const char* isa) noexcept {
  const bool is_avx512 = std::strncmp(isa, "avx512", 6) == 0;
  if (is_avx512 && has_vnni()) return {macs_avx512, int64_t{64} * kMacChains};
  if (std::strcmp(isa, "avx2_vnni") == 0) {
    if (has_vnni()) return {macs_avx2_vnni, int64_t{32} * kShortChains};
    if (has_avx_vnni()) return {macs_avx_vnni, int64_t{32} * kShortChains};
  }
  if (std::strncmp(isa, "avx", 3) == 0 && has_avx2())
    return {macs_avx2, int64_t{32} * kShortChains};
  return {macs_sse2, int64_t{8} * kShortChains};
}

#else

ByteLoop read_loop() noexcept { return read_plain; }
ByteLoop dot_loop() noexcept { return dot_plain; }
MacLoop mac_loop(const char*) noexcept { return {macs_plain, kPlainMacs}; }

#endif

}  // namespace sparseflow
