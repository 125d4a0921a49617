// Root mean square and Euclidean norms of one row.
#pragma once

namespace sparseflow {
namespace {

SPARSEFLOW_INLINE float inverse_root(float x) {
  float lanes[16];
  store(lanes, sqrt(set(x)));
  return 1.0F / lanes[0];
}

SPARSEFLOW_INLINE float sum_of_squares(const float* x, int64_t n) {
  float total;
  dot_tile<FloatWeights, 1, 1>(x, 0, x, 0, n, &total, 0);
  return total;
}

void rms_norm_kernel(const float* x, const float* weight, int64_t n, float eps,
                     float* out) noexcept {
  const F32 inverse = set(inverse_root(sum_of_squares(x, n) / static_cast<float>(n) + eps));
  map(x, weight, n, out, [inverse](F32 a, F32 w) { return mul(mul(a, inverse), w); });
}

void l2_norm_kernel(const float* x, int64_t n, float eps, float* out) noexcept {
  const F32 inverse = set(inverse_root(sum_of_squares(x, n) + eps));
  map(x, n, out, [inverse](F32 a) { return mul(a, inverse); });
}

}  // namespace
}  // namespace sparseflow
