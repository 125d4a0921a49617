// Activations to signed 8-bit codes, one scale for each 64 inputs.
#pragma once

namespace sparseflow {
namespace {

// The largest magnitude is found on the bit patterns, so that a NaN or infinity makes the scale one
// too and is not lost.
template <int kVectors>
SPARSEFLOW_INLINE float group_amax(const F32 (&x)[kVectors]) {
  I32 largest = set_int(0);
  for (int i = 0; i < kVectors; ++i) {
    largest = max(largest, bit_and(bits(x[i]), set_int(0x7FFFFFFF)));
  }
  int32_t lanes[16];
  __builtin_memcpy(lanes, &largest, sizeof(lanes));
  int32_t result = 0;
  for (int i = 0; i < 16; ++i) {
    result = lanes[i] > result ? lanes[i] : result;
  }
  float amax;
  __builtin_memcpy(&amax, &result, 4);
  return amax;
}

SPARSEFLOW_INLINE void quantize_group(const F32 (&x)[4], int8_t* codes, float* scale,
                                      int32_t* code_sums) {
  const float amax = group_amax(x);
  if (amax < 0x1p-100F) {
    __builtin_memset(codes, 0, 64);
    *scale = 0.0F;
    code_sums[0] = code_sums[1] = 0;
    return;
  }
  *scale = amax / 127.0F;
  const F32 inverse = set(127.0F / amax);
  const F32 magic = set(0x1.8p23F);
  I32 totals[2] = {set_int(0), set_int(0)};
  for (int i = 0; i < 4; ++i) {
    const F32 clamped = min(max(mul(x[i], inverse), set(-127.0F)), set(127.0F));
    const I32 code = sub(bits(add(clamped, magic)), set_int(0x4B400000));
    totals[i / 2] = add(totals[i / 2], code);
    store_bytes(codes + 16 * i, code);
  }
  for (int half = 0; half < 2; ++half) {
    int32_t lanes[16];
    __builtin_memcpy(lanes, &totals[half], sizeof(lanes));
    code_sums[half] = 0;
    for (int i = 0; i < 16; ++i) {
      code_sums[half] += lanes[i];
    }
  }
}

void quantize_kernel(const float* x, int64_t cols, int8_t* codes, float* scales,
                     int32_t* sums) noexcept {
  for (int64_t begin = 0; begin < cols; begin += kGroup) {
    F32 group[4];
    for (int i = 0; i < 4; ++i) {
      const int64_t left = cols - begin - 16 * i;
      group[i] = left >= 16 ? load(x + begin + 16 * i)
                 : left > 0 ? load_first(x + begin + 16 * i, left)
                            : zero();
    }
    quantize_group(group, codes + begin, scales + begin / kGroup, sums + begin / kHalfGroup);
  }
}

}  // namespace
}  // namespace sparseflow
