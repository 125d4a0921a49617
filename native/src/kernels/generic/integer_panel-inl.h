// Products with integer weights for many tokens: some groups of some rows are unpacked into a panel
// in the first-level cache, then a few tokens at a time multiply with it. Every output is the same
// chain as in integer_matmul-inl.h.
#pragma once

namespace sparseflow {
namespace {

constexpr int64_t kPanelBlocks = 4;     // blocks of 16 rows
constexpr int64_t kTileTokens = 128;    // whose sums stay near
constexpr int64_t kPanelBudget = 8192;  // bytes of a block

template <typename Codes>
struct PanelShape {
  static constexpr int64_t kGroupBytes =
      Codes::kInputs * kLanes * (kIsWidePanel<Codes::kBits> ? 2 : 1);
  static constexpr int64_t kGroups = kPanelBudget / kGroupBytes;
  using Input = PanelInput<Codes::kBits>;
};

// Sums of kTokens tokens over the panel's groups, for one block of rows. x: inputs of the first
// token and group, each token `stride` elements from the one before. x_scales and x_sums are those
// of the whole row of the first token, which has scale_stride scales.
template <typename Codes, typename Scales, int kTokens>
__attribute__((noinline)) void panel_rows(const uint8_t* panel, const Scales& row_scales,
                                          int64_t group, int64_t num_groups,
                                          const PanelInput<Codes::kBits>* x, int64_t stride,
                                          const float* x_scales, const int32_t* x_sums,
                                          int64_t scale_stride, float* acc) {
  for (int64_t g = 0; g < num_groups; ++g) {
    I32 sums[kTokens];
    panel_dot<Codes::kBits, Codes::kInputs, kTokens>(panel + g * PanelShape<Codes>::kGroupBytes,
                                                     x + g * Codes::kInputs, stride, sums);
    const F32 weight_scales = row_scales.of(group + g);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      if constexpr (!kIsWidePanel<Codes::kBits>) {
        const int32_t x_sum = code_sum<Codes>(x_sums + 2 * t * scale_stride, group + g);
        sums[t] = sub(sums[t], set_int(Codes::kOffset * x_sum));
      }
      const float x_scale = x_scales[t * scale_stride + (group + g) * Codes::kInputs / kGroup];
      const F32 scale = mul(weight_scales, set(x_scale));
      store(acc + t * kLanes, fma(to_float(sums[t]), scale, load(acc + t * kLanes)));
    }
  }
}

// How many tokens multiply together where so many are left.
SPARSEFLOW_INLINE int64_t panel_step(int64_t left) {
  return left >= kPanelTokens ? kPanelTokens : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

template <typename Codes, typename Scales, typename... Args>
SPARSEFLOW_INLINE void panel_rows_of(int64_t num_tokens, Args... args) {
  switch (num_tokens) {
    case 1:
      return panel_rows<Codes, Scales, 1>(args...);
    case 2:
      return panel_rows<Codes, Scales, 2>(args...);
    case kPanelTokens:
      return panel_rows<Codes, Scales, kPanelTokens>(args...);
    default:
      return panel_rows<Codes, Scales, 4>(args...);
  }
}

template <typename Codes>
void fill_panel(const uint8_t* codes, int64_t num_groups, uint8_t* panel) {
  for (int64_t g = 0; g < num_groups; ++g) {
#pragma GCC unroll 8
    for (int pair = 0; pair < Codes::kInputs / 8; ++pair) {
      Quads a;
      Quads b;
      Codes::unpack(codes + g * Codes::kGroupBytes, pair, &a, &b);
      store_panel<Codes::kBits>(panel + g * PanelShape<Codes>::kGroupBytes, pair, a, b);
    }
  }
}

// Up to kPanelBlocks blocks of rows for up to kTileTokens tokens.
template <typename Codes, typename Scales>
void panel_tile(const MatrixView& w, int64_t block, int64_t num_blocks, const Activations& x,
                int64_t token, int64_t num_tokens, float* out, int64_t out_stride) {
  using Shape = PanelShape<Codes>;
  const int64_t num_scales = (w.cols + kGroup - 1) / kGroup;  // of a token
  const int64_t num_groups = num_scales * (kGroup / Codes::kInputs);
  const auto* codes = static_cast<const uint8_t*>(w.codes);
  alignas(64) uint8_t panel[kPanelBlocks * kPanelBudget];
  alignas(64) float acc[kPanelBlocks * kTileTokens * kLanes];
  [[maybe_unused]] alignas(64) int16_t wide[kPanelTokens * Shape::kGroups * Codes::kInputs];
  for (int64_t b = 0; b < num_blocks; ++b) {
    for (int64_t t = 0; t < num_tokens; ++t) {
      store(acc + (b * kTileTokens + t) * kLanes, zero());
    }
  }
  for (int64_t group = 0; group < num_groups; group += Shape::kGroups) {
    const int64_t left = num_groups - group;
    const int64_t count = left < Shape::kGroups ? left : Shape::kGroups;
    for (int64_t b = 0; b < num_blocks; ++b) {
      fill_panel<Codes>(codes + ((block + b) * num_groups + group) * Codes::kGroupBytes, count,
                        panel + b * kPanelBudget);
    }
    for (int64_t t = 0, tokens = 0; t < num_tokens; t += tokens) {
      tokens = panel_step(num_tokens - t);
      const int64_t first = token + t;
      const int8_t* x_codes = x.codes + (first * num_groups + group) * Codes::kInputs;
      const typename Shape::Input* inputs;
      int64_t stride;
      if constexpr (kIsWidePanel<Codes::kBits>) {
        stride = count * Codes::kInputs;
        for (int64_t i = 0; i < tokens; ++i) {
          widen(x_codes + i * num_groups * Codes::kInputs, stride, wide + i * stride);
        }
        inputs = wide;
      } else {
        stride = num_groups * Codes::kInputs;
        inputs = x_codes;
      }
      for (int64_t b = 0; b < num_blocks; ++b) {
        const Scales scales(w, (block + b) * kLanes, num_groups);
        panel_rows_of<Codes, Scales>(tokens, panel + b * kPanelBudget, scales, group, count, inputs,
                                     stride, x.scales + first * num_scales,
                                     x.sums + 2 * first * num_scales, num_scales,
                                     acc + (b * kTileTokens + t) * kLanes);
      }
    }
  }
  for (int64_t b = 0; b < num_blocks; ++b) {
    const int64_t row = (block + b) * kLanes;
    const int64_t rows = w.rows - row < kLanes ? w.rows - row : kLanes;
    for (int64_t t = 0; t < num_tokens; ++t) {
      const F32 sums = load(acc + (b * kTileTokens + t) * kLanes);
      float* to = out + (token + t) * out_stride + row;
      rows == kLanes ? store(to, sums) : store_first(to, sums, rows);
    }
  }
}

template <typename Codes, typename Scales>
void panel_matmul(const MatrixView& w, int64_t block_begin, int64_t block_end, const Activations& x,
                  int64_t num_tokens, float* out, int64_t out_stride) {
  for (int64_t t = 0; t < num_tokens; t += kTileTokens) {
    const int64_t tokens = num_tokens - t < kTileTokens ? num_tokens - t : kTileTokens;
    for (int64_t block = block_begin; block < block_end; block += kPanelBlocks) {
      const int64_t left = block_end - block;
      panel_tile<Codes, Scales>(w, block, left < kPanelBlocks ? left : kPanelBlocks, x, t, tokens,
                                out, out_stride);
    }
  }
}

}  // namespace
}  // namespace sparseflow
