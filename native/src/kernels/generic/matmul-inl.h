// A matrix product in whatever format the weights have.
#pragma once

#include "kernels/generic/float_matmul-inl.h"
#include "kernels/generic/integer_matmul-inl.h"

namespace sparseflow {
namespace {

void matmul_kernel(const MatrixView& w, int64_t block_begin, int64_t block_end,
                   const Activations& x, int64_t num_tokens, float* out,
                   int64_t out_stride) noexcept {
  switch (w.format) {
    case WeightFormat::kBf16:
      float_matmul<Bf16Weights>(w, block_begin, block_end, x, num_tokens, out, out_stride);
      break;
    case WeightFormat::kFloat32:
      float_matmul<FloatWeights>(w, block_begin, block_end, x, num_tokens, out, out_stride);
      break;
    case WeightFormat::kInt8:
      integer_matmul<Int8Codes, RowScales>(w, block_begin, block_end, x, num_tokens, out,
                                           out_stride);
      break;
    case WeightFormat::kInt8G64:
      integer_matmul<Int8Codes, GroupScales>(w, block_begin, block_end, x, num_tokens, out,
                                             out_stride);
      break;
    case WeightFormat::kInt6G64:
      integer_matmul<Int6Codes, GroupScales>(w, block_begin, block_end, x, num_tokens, out,
                                             out_stride);
      break;
    case WeightFormat::kInt4G64:
      integer_matmul<Int4Codes, GroupScales>(w, block_begin, block_end, x, num_tokens, out,
                                             out_stride);
      break;
    case WeightFormat::kInt4G32:
      integer_matmul<Int4HalfCodes, GroupScales>(w, block_begin, block_end, x, num_tokens, out,
                                                 out_stride);
      break;
  }
}

}  // namespace
}  // namespace sparseflow
