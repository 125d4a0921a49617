#include <algorithm>
#include <cstdint>
#include <cstring>

#include "sparseflow/ops.h"

namespace sparseflow {
namespace {

constexpr int64_t kChunk = 4096;  // elements of an item

// Calls body(begin, count) over [0, count) in chunks.
template <typename Body>
void for_chunks(Runtime& runtime, int64_t count, Body body) {
  runtime.pool().parallel_for((count + kChunk - 1) / kChunk, [&](int64_t item, int) {
    const int64_t begin = item * kChunk;
    body(begin, std::min(kChunk, count - begin));
  });
}

}  // namespace

void rms_norm(Runtime& runtime, const float* x, const NormView& norm, int64_t num_tokens, int64_t n,
              float* out) {
  const KernelTable& kernels = runtime.kernels();
  runtime.pool().parallel_for(num_tokens, [&](int64_t t, int) {
    kernels.rms_norm(x + t * n, norm.weight, n, norm.eps, out + t * n);
  });
}

void add(Runtime& runtime, float* x, const float* y, int64_t count) {
  for_chunks(runtime, count, [&](int64_t begin, int64_t n) {
    runtime.kernels().add(x + begin, y + begin, n, x + begin);
  });
}

void silu_multiply(Runtime& runtime, const float* gate, const float* up, int64_t count,
                   float* out) {
  for_chunks(runtime, count, [&](int64_t begin, int64_t n) {
    runtime.kernels().silu_multiply(gate + begin, up + begin, n, out + begin);
  });
}

void bf16_to_float(Runtime& runtime, const uint16_t* x, int64_t count, float* out) {
  for_chunks(runtime, count, [&](int64_t begin, int64_t n) {
    runtime.kernels().bf16_to_float(x + begin, n, out + begin);
  });
}

void exp(Runtime& runtime, const float* x, int64_t count, float* out) {
  for_chunks(runtime, count,
             [&](int64_t begin, int64_t n) { runtime.kernels().exp(x + begin, n, out + begin); });
}

bool is_finite(const float* x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, x + i, 4);
    largest = std::max(largest, bits & 0x7FFFFFFFU);
  }
  return largest < 0x7F800000U;
}

}  // namespace sparseflow
