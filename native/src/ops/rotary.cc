// Sines and cosines of rotary angles in plain double arithmetic: no libm, whose last bits differ
// between machines, and no fused operation, so that every compiler target gives the same bits.

#include <cstdint>

#include "sparseflow/ops.h"

namespace sparseflow {
namespace {

struct SineCosine {
  double sine;
  double cosine;
};

// Taylor series on [-pi/4, pi/4]; the first omitted terms are below 2^-54.
SineCosine reduced_sine_cosine(double r) {
  const double z = r * r;
  double s = -1.0 / 1307674368000.0;
  s = s * z + 1.0 / 6227020800.0;
  s = s * z - 1.0 / 39916800.0;
  s = s * z + 1.0 / 362880.0;
  s = s * z - 1.0 / 5040.0;
  s = s * z + 1.0 / 120.0;
  s = s * z - 1.0 / 6.0;
  double c = 1.0 / 20922789888000.0;
  c = c * z - 1.0 / 87178291200.0;
  c = c * z + 1.0 / 479001600.0;
  c = c * z - 1.0 / 3628800.0;
  c = c * z + 1.0 / 40320.0;
  c = c * z - 1.0 / 720.0;
  c = c * z + 1.0 / 24.0;
  c = c * z - 0.5;
  return {r + r * (z * s), 1.0 + z * c};
}

// x >= 0, below 2^22: the two upper parts of pi/2 have 31 and 33 bits, so that their products with
// n are exact.
SineCosine sine_cosine(double x) {
  constexpr double kMagic = 0x1.8p52;
  const double n = (x * 0x1.45f306dc9c883p-1 + kMagic) - kMagic;
  double r = x - n * 0x1.921fb544p+0;
  r = r - n * 0x1.0b4611a4p-34;
  r = r - n * 0x1.13198a2e03707p-65;
  const SineCosine base = reduced_sine_cosine(r);
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      return base;
    case 1:
      return {base.cosine, -base.sine};
    case 2:
      return {-base.sine, -base.cosine};
    default:
      return {-base.cosine, base.sine};
  }
}

}  // namespace

void rotary_angles(int64_t position, const float* inv_freq, int64_t count, float* cosines,
                   float* sines) {
  for (int64_t i = 0; i < count; ++i) {
    const float angle = static_cast<float>(position) * inv_freq[i];
    const SineCosine value = sine_cosine(static_cast<double>(angle));
    cosines[i] = static_cast<float>(value.cosine);
    sines[i] = static_cast<float>(value.sine);
  }
}

}  // namespace sparseflow
