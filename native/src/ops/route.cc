#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "sparseflow/ops.h"

namespace sparseflow {

void route(Runtime& runtime, const float* logits, int64_t num_tokens, int64_t num_experts,
           int64_t k, int32_t* ids, float* weights) {
  const int threads = runtime.pool().num_threads();
  auto* order_memory = static_cast<int32_t*>(
      runtime.scratch().bytes(num_experts * threads * int64_t{sizeof(int32_t)}));
  const KernelTable& kernels = runtime.kernels();
  runtime.pool().parallel_for(num_tokens, [&](int64_t t, int thread) {
    const float* row = logits + t * num_experts;
    int32_t* order = order_memory + thread * num_experts;
    std::iota(order, order + num_experts, 0);
    std::partial_sort(order, order + k, order + num_experts, [row](int32_t a, int32_t b) {
      return row[a] > row[b] || (row[a] == row[b] && a < b);
    });
    const float maximum = row[order[0]];
    std::sort(order, order + k);
    int32_t* chosen = ids + t * k;
    float* weight = weights + t * k;
    for (int64_t i = 0; i < k; ++i) {
      chosen[i] = order[i];
      weight[i] = row[order[i]] - maximum;
    }
    kernels.exp(weight, k, weight);
    float sum = 0.0F;
    for (int64_t i = 0; i < k; ++i) {
      sum += weight[i];
    }
    for (int64_t i = 0; i < k; ++i) {
      weight[i] /= sum;
    }
  });
}

}  // namespace sparseflow
