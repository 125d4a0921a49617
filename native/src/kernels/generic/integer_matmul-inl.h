// Products with integer weights: 16 rows in the lanes, an exact int32 sum for each group of 64
// inputs, then one fused multiply-add.
#pragma once

namespace sparseflow {
namespace {

// Sixteen rows and the inputs that share their scales, 64 or 32: how many bytes they take, what a
// stored code is above its value, and two steps (8 inputs) unpacked to bytes.
struct Int8Codes {
  static constexpr int kBits = 8;
  static constexpr int kInputs = 64;
  static constexpr int32_t kOffset = 128;
  static constexpr int64_t kGroupBytes = 1024;
  static SPARSEFLOW_INLINE void unpack(const uint8_t* p, int pair, Quads* a, Quads* b) {
    *a = load_quads(p + 128 * pair);
    *b = load_quads(p + 128 * pair + 64);
  }
};
struct Int6Codes {
  static constexpr int kBits = 6;
  static constexpr int kInputs = 64;
  static constexpr int32_t kOffset = 32;
  static constexpr int64_t kGroupBytes = 768;
  static SPARSEFLOW_INLINE void unpack(const uint8_t* p, int pair, Quads* a, Quads* b) {
    const Quads low = load_quads(p + 64 * pair);
    const Quads high = load_quads(p + 512 + 64 * (pair / 2));
    *a = pair % 2 == 0 ? with_high_bits<0>(low_nibbles(low), high)
                       : with_high_bits<2>(low_nibbles(low), high);
    *b = pair % 2 == 0 ? with_high_bits<1>(high_nibbles(low), high)
                       : with_high_bits<3>(high_nibbles(low), high);
  }
};
struct Int4Codes {
  static constexpr int kBits = 4;
  static constexpr int kInputs = 64;
  static constexpr int32_t kOffset = 8;
  static constexpr int64_t kGroupBytes = 512;
  static SPARSEFLOW_INLINE void unpack(const uint8_t* p, int pair, Quads* a, Quads* b) {
    const Quads codes = load_quads(p + 64 * pair);
    *a = low_nibbles(codes);
    *b = high_nibbles(codes);
  }
};

struct Int4HalfCodes : Int4Codes {
  static constexpr int kInputs = 32;
  static constexpr int64_t kGroupBytes = 256;
};

// What the codes of an activation's inputs in group g add up to. sums: of each 32 of its inputs.
template <typename Codes>
SPARSEFLOW_INLINE int32_t code_sum(const int32_t* sums, int64_t g) {
  return Codes::kInputs == kHalfGroup ? sums[g] : sums[2 * g] + sums[2 * g + 1];
}

struct RowScales {  // one for each row
  F32 scales;
  SPARSEFLOW_INLINE RowScales(const MatrixView& w, int64_t row, int64_t /*num_groups*/)
      : scales(load(static_cast<const float*>(w.scales) + row)) {}
  SPARSEFLOW_INLINE F32 of(int64_t /*group*/) const { return scales; }
};
struct GroupScales {  // one for each row and group
  const uint16_t* scales;
  SPARSEFLOW_INLINE GroupScales(const MatrixView& w, int64_t row, int64_t num_groups)
      : scales(static_cast<const uint16_t*>(w.scales) + row * num_groups) {}
  SPARSEFLOW_INLINE F32 of(int64_t group) const { return load_half(scales + group * kLanes); }
};

// A cache line of codes takes so many instructions that the core does not see far enough ahead by
// itself. The last groups of a matrix ask for what lies behind it, which does no harm.
constexpr int64_t kPrefetchAhead = 3072;
constexpr int64_t kFewTokens = 4;  // up to here weights are unpacked on the way into the product

// One block of 16 rows for kTokens tokens.
template <typename Codes, typename Scales, int kTokens>
SPARSEFLOW_INLINE void integer_block(const uint8_t* codes, const Scales& row_scales,
                                     const Activations& x, int64_t num_groups, F32* acc) {
  const int64_t stride = num_groups * Codes::kInputs;
  const int64_t num_scales = stride / kGroup;
  for (int t = 0; t < kTokens; ++t) {
    acc[t] = zero();
  }
  for (int64_t g = 0; g < num_groups; ++g) {
    GroupDot<Codes::kBits, kTokens> dot;
    dot.start();
#pragma GCC unroll 8
    for (int pair = 0; pair < Codes::kInputs / 8; ++pair) {
      Quads a;
      Quads b;
      const uint8_t* at = codes + g * Codes::kGroupBytes;
      __builtin_prefetch(at + kPrefetchAhead + pair * (8 * Codes::kGroupBytes / Codes::kInputs));
      Codes::unpack(at, pair, &a, &b);
      dot.add(pair, a, b, x.codes + g * Codes::kInputs + 8 * pair, stride);
    }
    const F32 weight_scales = row_scales.of(g);
    for (int t = 0; t < kTokens; ++t) {
      const float x_scale = x.scales[t * num_scales + g * Codes::kInputs / kGroup];
      const F32 scale = mul(weight_scales, set(x_scale));
      const I32 sum = dot.sum(t, Codes::kOffset * code_sum<Codes>(x.sums + 2 * t * num_scales, g));
      acc[t] = fma(to_float(sum), scale, acc[t]);
    }
  }
}

template <typename Codes, typename Scales, int kTokens>
void integer_tile(const uint8_t* codes, const Scales& row_scales, const Activations& x,
                  int64_t num_groups, int64_t num_rows, float* out, int64_t out_stride) {
  F32 acc[kTokens];
  integer_block<Codes, Scales, kTokens>(codes, row_scales, x, num_groups, acc);
  for (int t = 0; t < kTokens; ++t) {
    if (num_rows == kLanes) {
      store(out + t * out_stride, acc[t]);
    } else {
      store_first(out + t * out_stride, acc[t], num_rows);
    }
  }
}

}  // namespace
}  // namespace sparseflow

#include "kernels/generic/integer_panel-inl.h"

namespace sparseflow {
namespace {

template <typename Codes, typename Scales>
void integer_matmul(const MatrixView& w, int64_t block_begin, int64_t block_end,
                    const Activations& x, int64_t num_tokens, float* out, int64_t out_stride) {
  if (num_tokens > kFewTokens) {
    panel_matmul<Codes, Scales>(w, block_begin, block_end, x, num_tokens, out, out_stride);
    return;
  }
  const int64_t num_groups = (w.cols + kGroup - 1) / kGroup * (kGroup / Codes::kInputs);
  for (int64_t block = block_begin; block < block_end; ++block) {
    const int64_t row = block * kLanes;
    const int64_t num_rows = w.rows - row < kLanes ? w.rows - row : kLanes;
    const auto* codes =
        static_cast<const uint8_t*>(w.codes) + block * num_groups * Codes::kGroupBytes;
    const Scales scales(w, row, num_groups);
    float* rows = out + row;
    switch (num_tokens) {
      case 4:
        integer_tile<Codes, Scales, 4>(codes, scales, x, num_groups, num_rows, rows, out_stride);
        break;
      case 3:
        integer_tile<Codes, Scales, 3>(codes, scales, x, num_groups, num_rows, rows, out_stride);
        break;
      case 2:
        integer_tile<Codes, Scales, 2>(codes, scales, x, num_groups, num_rows, rows, out_stride);
        break;
      case 1:
        integer_tile<Codes, Scales, 1>(codes, scales, x, num_groups, num_rows, rows, out_stride);
        break;
      default:
        break;
    }
  }
}

}  // namespace
}  // namespace sparseflow
