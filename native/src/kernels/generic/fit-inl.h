// Weights to codes: with one float16 scale for each group, searched to lower the squared error, or
// with the scale of the largest of a row.
#pragma once

namespace sparseflow {
namespace {

constexpr float kLargestFloat = 0x1.fffffep127F;

SPARSEFLOW_INLINE F32 clamp_and_shift(F32 x, const CodeRange& range) {
  const F32 clamped = min(max(x, set(range.lowest)), set(range.highest));
  return add(clamped, set(0x1.8p23F));  // rounds to an integer, half to even
}

// Sixteen partial sums of four or two terms each, then the tree of every dot product.
template <int kVectors>
SPARSEFLOW_INLINE float sum_group(const F32 (&x)[kVectors]) {
  F32 total = x[0];
  for (int i = 1; i < kVectors; ++i) {
    total = add(total, x[i]);
  }
  return sum(total);
}

// Codes q that a scale proposes have a best scale of their own, sum(x q) / sum(q^2), which lowers
// the squared error by sum(x q)^2 / sum(q^2). Returns the one that lowers it most. REQUIRES: the
// largest magnitude, `extreme` with its sign, is in [1, 2).
template <int kVectors>
SPARSEFLOW_INLINE float search_scale(const F32 (&x)[kVectors], float extreme,
                                     const CodeRange& range) {
  float best_gain = -1.0F;
  float best_scale = 0.0F;
#pragma GCC unroll 1
  for (int64_t n = 0; n < range.num_divisors; ++n) {
    const F32 inverse = set(range.divisors[n] / extreme);
    F32 products[kVectors];
    F32 norms[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      const F32 code = sub(clamp_and_shift(mul(x[i], inverse), range), set(0x1.8p23F));
      products[i] = mul(x[i], code);
      norms[i] = mul(code, code);
    }
    const float product = sum_group(products);
    const float scale = product / sum_group(norms);
    const float gain = product * scale;
    if (gain > best_gain) {
      best_gain = gain;
      best_scale = scale;
    }
  }
  return best_scale;
}

SPARSEFLOW_INLINE float power_of_two(int32_t exponent) {
  const int32_t pattern = (exponent + 127) << 23;
  float power;
  __builtin_memcpy(&power, &pattern, 4);
  return power;
}

// The float16 nearest to the wanted scale, ties to even, kept away from zero and infinity.
SPARSEFLOW_INLINE F32 nearest_half(float wanted, uint16_t* half) {
  const float magnitude = wanted < 0.0F ? 0.0F - wanted : wanted;
  const float above = magnitude > kSmallestHalf ? magnitude : kSmallestHalf;
  const float kept = above < kLargestHalf ? above : kLargestHalf;
  alignas(32) uint16_t halves[16];
  store_half(halves, set(wanted < 0.0F ? 0.0F - kept : kept));
  *half = halves[0];
  return load_half(halves);
}

template <int kVectors>
SPARSEFLOW_INLINE float fit_group(const float* weights, const CodeRange& range, int8_t* codes,
                                  uint16_t* scale) {
  F32 w[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    w[i] = load(weights + 16 * i);
  }
  const float amax = group_amax(w);
  if (!(amax > kSmallestHalf / 2 && amax <= kLargestHalf * (0.0F - range.lowest))) {
    __builtin_memset(codes, 0, 16 * kVectors);
    *scale = 0;
    return amax;
  }
  int32_t pattern;
  __builtin_memcpy(&pattern, &amax, 4);
  const int32_t exponent = (pattern >> 23) - 127;
  const F32 down = set(power_of_two(0 - exponent));
  F32 x[kVectors];
  F32 largest = w[0];
  for (int i = 0; i < kVectors; ++i) {
    x[i] = mul(w[i], down);
    largest = max(largest, w[i]);
  }
  const bool is_positive = maximum(largest) == amax;
  const float extreme = (is_positive ? amax : 0.0F - amax) * power_of_two(0 - exponent);
  const F32 stored = nearest_half(search_scale(x, extreme, range) * power_of_two(exponent), scale);
  for (int i = 0; i < kVectors; ++i) {
    const F32 code = clamp_and_shift(div(w[i], stored), range);
    store_bytes(codes + 16 * i, sub(bits(code), set_int(0x4B400000)));
  }
  return amax;
}

float fit_group_kernel(const float* weights, const CodeRange& range, int8_t* codes,
                       uint16_t* scale) noexcept {
  return range.num_inputs == kGroup ? fit_group<4>(weights, range, codes, scale)
                                    : fit_group<2>(weights, range, codes, scale);
}

float fit_row_kernel(const float* weights, int64_t padded_cols, int8_t* codes) noexcept {
  I32 magnitudes = set_int(0);
  for (int64_t k = 0; k < padded_cols; k += 16) {
    magnitudes = max(magnitudes, bit_and(bits(load(weights + k)), set_int(0x7FFFFFFF)));
  }
  const F32 lanes[1] = {from_bits(magnitudes)};
  const float largest = group_amax(lanes);
  const float scale = largest / 127.0F;
  if (!(largest <= kLargestFloat) || scale == 0.0F) {
    __builtin_memset(codes, 0, static_cast<size_t>(padded_cols));
    return largest;
  }
  const CodeRange range{kGroup, -127.0F, 127.0F, nullptr, 0};
  for (int64_t k = 0; k < padded_cols; k += 16) {
    const F32 code = clamp_and_shift(div(load(weights + k), set(scale)), range);
    store_bytes(codes + k, sub(bits(code), set_int(0x4B400000)));
  }
  return largest;
}

}  // namespace
}  // namespace sparseflow
