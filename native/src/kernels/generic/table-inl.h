// Collects an instruction set's kernels into its table. Included once by each table.cc, after its
// simd.h.
#pragma once

#include "sparseflow/kernel_table.h"
#include "kernels/generic/hash-inl.h"
#include "kernels/generic/math-inl.h"
#include "kernels/generic/elementwise-inl.h"
#include "kernels/generic/quantize-inl.h"
#include "kernels/generic/fit-inl.h"
#include "kernels/generic/matmul-inl.h"
#include "kernels/generic/norm-inl.h"
#include "kernels/generic/attention-inl.h"
#include "kernels/generic/delta-inl.h"

namespace sparseflow {
namespace {

constexpr KernelTable make_table(const char* name, uint32_t cpu_features) {
  return {
      .name = name,
      .cpu_features = cpu_features,
      .hash = hash_kernel,
      .quantize = quantize_kernel,
      .fit_group = fit_group_kernel,
      .fit_row = fit_row_kernel,
      .matmul = matmul_kernel,
      .rms_norm = rms_norm_kernel,
      .l2_norm = l2_norm_kernel,
      .exp = exp_kernel,
      .sigmoid = sigmoid_kernel,
      .softplus = softplus_kernel,
      .silu = silu_kernel,
      .multiply = multiply_kernel,
      .add = add_kernel,
      .multiply_add = multiply_add_kernel,
      .silu_multiply = silu_multiply_kernel,
      .to_half = to_half_kernel,
      .bf16_to_float = bf16_to_float_kernel,
      .rotate = rotate_kernel,
      .attention_segment = attention_segment_kernel,
      .attention_merge = attention_merge_kernel,
      .attention_finish = attention_finish_kernel,
      .gated_delta = gated_delta_kernel,
      .conv_silu = conv_silu_kernel,
  };
}

}  // namespace
}  // namespace sparseflow
