// Functions of one element at a time. out may be an input.
#pragma once

namespace sparseflow {
namespace {

template <typename Lanes>
SPARSEFLOW_INLINE void map(const float* x, int64_t n, float* out, Lanes lanes) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    store(out + i, lanes(load(x + i)));
  }
  if (i < n) {
    store_first(out + i, lanes(load_first(x + i, n - i)), n - i);
  }
}

template <typename Lanes>
SPARSEFLOW_INLINE void map(const float* a, const float* b, int64_t n, float* out, Lanes lanes) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    store(out + i, lanes(load(a + i), load(b + i)));
  }
  if (i < n) {
    store_first(out + i, lanes(load_first(a + i, n - i), load_first(b + i, n - i)), n - i);
  }
}

void exp_kernel(const float* x, int64_t n, float* out) noexcept { map(x, n, out, exp_lanes); }
void sigmoid_kernel(const float* x, int64_t n, float* out) noexcept {
  map(x, n, out, sigmoid_lanes);
}
void softplus_kernel(const float* x, int64_t n, float* out) noexcept {
  map(x, n, out, softplus_lanes);
}
void silu_kernel(const float* x, int64_t n, float* out) noexcept { map(x, n, out, silu_lanes); }

void multiply_kernel(const float* a, const float* b, int64_t n, float* out) noexcept {
  map(a, b, n, out, [](F32 x, F32 y) { return mul(x, y); });
}
void add_kernel(const float* a, const float* b, int64_t n, float* out) noexcept {
  map(a, b, n, out, [](F32 x, F32 y) { return add(x, y); });
}
void multiply_add_kernel(float scale, const float* x, int64_t n, float* acc) noexcept {
  const F32 s = set(scale);
  map(x, acc, n, acc, [s](F32 a, F32 b) { return fma(s, a, b); });
}
void silu_multiply_kernel(const float* gate, const float* up, int64_t n, float* out) noexcept {
  map(gate, up, n, out, [](F32 g, F32 u) { return mul(silu_lanes(g), u); });
}

// Copies the first n of sixteen 16-bit values, the others zero.
SPARSEFLOW_INLINE void copy_first(const uint16_t* p, int64_t n, uint16_t* sixteen) {
  for (int64_t i = 0; i < 16; ++i) {
    sixteen[i] = i < n ? p[i] : uint16_t{0};
  }
}

void to_half_kernel(const float* x, int64_t n, uint16_t* out) noexcept {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    store_half(out + i, load(x + i));
  }
  if (i < n) {
    uint16_t tail[16];
    store_half(tail, load_first(x + i, n - i));
    for (int64_t j = 0; i + j < n; ++j) {
      out[i + j] = tail[j];
    }
  }
}

void bf16_to_float_kernel(const uint16_t* x, int64_t n, float* out) noexcept {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    store(out + i, load_bf16(x + i));
  }
  if (i < n) {
    uint16_t tail[16];
    copy_first(x + i, n - i, tail);
    store_first(out + i, load_bf16(tail), n - i);
  }
}

void rotate_kernel(float* x, const float* cosines, const float* sines,
                   int64_t rotary_dim) noexcept {
  const int64_t half = rotary_dim / 2;
  float* y = x + half;
  for (int64_t i = 0; i < half; i += 16) {
    const int64_t n = half - i < 16 ? half - i : 16;
    const F32 a = load_first(x + i, n);
    const F32 b = load_first(y + i, n);
    const F32 c = load_first(cosines + i, n);
    const F32 s = load_first(sines + i, n);
    store_first(x + i, sub(mul(a, c), mul(b, s)), n);
    store_first(y + i, add(mul(b, c), mul(a, s)), n);
  }
}

}  // namespace
}  // namespace sparseflow
