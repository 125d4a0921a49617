#include <algorithm>
#include <cstdint>
#include <span>

#include "sparseflow/ops.h"
#include "sparseflow/weight_format.h"

namespace sparseflow {
namespace {

// Enough items that fast and slow cores finish together, and enough work in each that claiming one
// costs nothing.
constexpr int64_t kItemsPerThread = 8;
constexpr int64_t kMinItemWeights = 16 * 1024;

int64_t num_blocks(const MatrixView& w) { return (w.rows + kLanes - 1) / kLanes; }

}  // namespace

Activations prepare_activations(Runtime& runtime, const float* x, int64_t num_tokens, int64_t cols,
                                bool quantized) {
  Activations result{x, cols, nullptr, nullptr, nullptr};
  if (!quantized) {
    return result;
  }
  const int64_t padded = round_up(cols, kGroup);
  const int64_t groups = padded / kGroup;
  auto* codes = static_cast<int8_t*>(runtime.scratch().bytes(num_tokens * padded));
  auto* scales = runtime.scratch().floats(num_tokens * groups);
  auto* sums = static_cast<int32_t*>(runtime.scratch().bytes(2 * num_tokens * groups * 4));
  const KernelTable& kernels = runtime.kernels();
  runtime.pool().parallel_for(num_tokens, [&](int64_t t, int) {
    kernels.quantize(x + t * cols, cols, codes + t * padded, scales + t * groups,
                     sums + t * 2 * groups);
  });
  result.codes = codes;
  result.scales = scales;
  result.sums = sums;
  return result;
}

void linear(Runtime& runtime, std::span<const LinearOutput> outputs, const float* x,
            int64_t num_tokens) {
  if (outputs.empty() || num_tokens == 0) {
    return;
  }
  const int64_t cols = outputs.front().weights.cols;
  int64_t total_blocks = 0;
  bool quantized = false;
  for (const LinearOutput& output : outputs) {
    total_blocks += num_blocks(output.weights);
    quantized = quantized || is_integer(output.weights.format);
  }
  const Activations activations = prepare_activations(runtime, x, num_tokens, cols, quantized);
  const int64_t wanted_items = kItemsPerThread * runtime.pool().num_threads();
  const int64_t min_blocks =
      std::max<int64_t>(1, kMinItemWeights / (kLanes * std::max<int64_t>(cols, 1)));
  const int64_t blocks_per_item = num_tokens > 1
                                      ? std::max<int64_t>(1, total_blocks / wanted_items)
                                      : std::max(min_blocks, total_blocks / wanted_items);
  const int64_t items = (total_blocks + blocks_per_item - 1) / blocks_per_item;
  const KernelTable& kernels = runtime.kernels();
  runtime.pool().parallel_for(items, [&](int64_t item, int) {
    int64_t begin = item * blocks_per_item;
    const int64_t end = std::min(begin + blocks_per_item, total_blocks);
    int64_t first = 0;  // of the output's blocks in the common numbering
    for (const LinearOutput& output : outputs) {
      const int64_t last = first + num_blocks(output.weights);
      if (begin < std::min(end, last)) {
        kernels.matmul(output.weights, begin - first, std::min(end, last) - first, activations,
                       num_tokens, output.out, output.out_stride);
        begin = std::min(end, last);
      }
      first = last;
    }
  });
}

}  // namespace sparseflow
