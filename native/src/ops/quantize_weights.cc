// Weights to the integer formats: padding and the order of the bytes. Scales and codes come from a
// kernel whose arithmetic is fixed: container bytes do not depend on the CPU.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "sparseflow/errors.h"
#include "sparseflow/float_environment.h"
#include "sparseflow/ops.h"
#include "sparseflow/weight_format.h"

namespace sparseflow {
namespace {

void widen(const float* from, int64_t count, float* to) {
  std::memcpy(to, from, static_cast<size_t>(count) * 4);
}

void widen(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);
  }
}

uint32_t four_codes(const void* codes) noexcept {
  uint32_t four;
  std::memcpy(&four, codes, 4);
  return four;
}

void put_four(uint32_t four, uint8_t* out) noexcept { std::memcpy(out, &four, 4); }

std::string where(int64_t row) { return "weights: row " + std::to_string(row) + " has a value "; }

[[noreturn]] void refuse_not_finite(int64_t row) {
  throw ConfigError(where(row) + "that is not finite; it cannot be quantized");
}

template <typename Weight>
void quantize_rows(const KernelTable& kernels, const Weight* weights, int64_t rows, int64_t cols,
                   uint8_t* codes, float* scales) {
  const FloatEnvironment environment;
  const int64_t padded = round_up(cols, kGroup);
  std::vector<float> x(static_cast<size_t>(padded), 0.0F);
  std::vector<int8_t> row_codes(static_cast<size_t>(padded));
  for (int64_t row = 0; row < round_up(rows, kLanes); ++row) {
    std::fill(row_codes.begin(), row_codes.end(), int8_t{0});
    scales[row] = 0.0F;
    if (row < rows) {
      widen(weights + row * cols, cols, x.data());
      const float largest = kernels.fit_row(x.data(), padded, row_codes.data());
      if (std::bit_cast<uint32_t>(largest) >= 0x7F800000) {
        refuse_not_finite(row);
      }
      scales[row] = largest / 127.0F;
    }
    uint8_t* out = codes + row / kLanes * kLanes * padded + row % kLanes * 4;
    for (int64_t k = 0; k < padded; k += 4) {
      put_four(four_codes(row_codes.data() + k) ^ 0x80808080, out + k * kLanes);
    }
  }
}

constexpr int kGroupSize = static_cast<int>(kGroup);

// Negative divisors put a group's extreme value at the longer, negative end of the range.
constexpr float kInt4Divisors[] = {-9.0F, -8.5F, -8.25F, -8.0F, -7.75F,
                                   -7.5F, -7.0F, 7.0F,   7.25F, 7.5F};
constexpr float kInt6Divisors[] = {-32.25F, -31.75F, -31.25F, -30.75F,
                                   -30.25F, 30.5F,   31.0F,   31.5F};
constexpr float kInt8Divisors[] = {127.0F, 126.0F, 125.0F};

struct Quantizer {
  WeightFormat format;
  CodeRange range;
};

template <size_t kCount>
constexpr CodeRange code_range(float lowest, float highest, const float (&divisors)[kCount],
                               int64_t num_inputs = kGroup) {
  return {num_inputs, lowest, highest, divisors, static_cast<int64_t>(kCount)};
}

Quantizer quantizer(WeightFormat format) noexcept {
  switch (format) {
    case WeightFormat::kInt4G64:
      return {format, code_range(-8.0F, 7.0F, kInt4Divisors)};
    case WeightFormat::kInt4G32:
      return {format, code_range(-8.0F, 7.0F, kInt4Divisors, kHalfGroup)};
    case WeightFormat::kInt6G64:
      return {format, code_range(-32.0F, 31.0F, kInt6Divisors)};
    default:
      return {format, code_range(-127.0F, 127.0F, kInt8Divisors)};
  }
}

float largest_weight(const Quantizer& to) noexcept { return -to.range.lowest * kLargestHalf; }

using Tile = uint8_t[kLanes][kGroupSize];  // codes plus offset of 16 rows and a group

// [8 steps][16][4]: the low four bits of inputs 8 s + j and 8 s + 4 + j share a byte.
void pack_low_bits(const Tile& tile, uint8_t* out) noexcept {
  for (int step = 0; step < 8; ++step) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t first = four_codes(tile[lane] + 8 * step) & 0x0F0F0F0F;
      const uint32_t second = four_codes(tile[lane] + 8 * step + 4) & 0x0F0F0F0F;
      put_four(first | second << 4, out + (step * kLanes + lane) * 4);
    }
  }
}

// [4 steps][16][4]: bits 4 and 5 of inputs 16 u + 4 m + j at bits 2 m and 2 m + 1.
void pack_high_bits(const Tile& tile, uint8_t* out) noexcept {
  for (int step = 0; step < 4; ++step) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      uint32_t packed = 0;
      for (int part = 0; part < 4; ++part) {
        const uint32_t four = four_codes(tile[lane] + 16 * step + 4 * part);
        packed |= (four >> 4 & 0x03030303) << 2 * part;
      }
      put_four(packed, out + (step * kLanes + lane) * 4);
    }
  }
}

void pack(const Tile& tile, WeightFormat format, uint8_t* out) noexcept {
  if (format == WeightFormat::kInt8G64) {
    for (int step = 0; step < kGroupSize / 4; ++step) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        std::memcpy(out + (step * kLanes + lane) * 4, tile[lane] + 4 * step, 4);
      }
    }
    return;
  }
  pack_low_bits(tile, out);
  if (format == WeightFormat::kInt6G64) {
    pack_high_bits(tile, out + kLanes * kGroup / 2);
  }
}

[[noreturn]] void refuse(float amax, int64_t row, const Quantizer& to) {
  if (std::bit_cast<uint32_t>(amax) >= 0x7F800000) {
    refuse_not_finite(row);
  }
  throw ConfigError(where(row) + "beyond " + std::to_string(static_cast<int>(largest_weight(to))) +
                    ", the largest that " + weight_format_name(to.format) + " can hold");
}

template <typename Weight>
void quantize_groups(const KernelTable& kernels, const Quantizer& to, const Weight* weights,
                     int64_t rows, int64_t cols, uint8_t* codes, uint16_t* scales) {
  const FloatEnvironment environment;
  const int offset = code_offset(to.format);
  const int64_t inputs = to.range.num_inputs;
  Tile tile;
  float w[kGroupSize];
  int8_t group[kGroupSize];
  for (int64_t block = 0; block < rows; block += kLanes) {
    for (int64_t begin = 0; begin < cols; begin += kGroup) {
      std::memset(tile, offset, sizeof tile);
      for (int64_t at = 0; at < kGroup; at += inputs, scales += kLanes) {
        std::fill_n(scales, kLanes, uint16_t{0});
        const int64_t count = std::clamp<int64_t>(cols - begin - at, 0, inputs);
        for (int64_t row = block; row < std::min(block + kLanes, rows); ++row) {
          widen(weights + row * cols + begin + at, count, w);
          std::fill(w + count, w + inputs, 0.0F);
          const float amax = kernels.fit_group(w, to.range, group, scales + row - block);
          if (!(amax <= largest_weight(to))) {
            refuse(amax, row, to);
          }
          for (int64_t k = 0; k < inputs; ++k) {
            tile[row - block][at + k] = static_cast<uint8_t>(group[k] + offset);
          }
        }
      }
      pack(tile, to.format, codes);
      codes += code_bytes(to.format, kLanes, kGroup);
    }
  }
}

template <typename Weight>
void quantize(const KernelTable& kernels, WeightFormat format, const Weight* weights, int64_t rows,
              int64_t cols, uint8_t* codes, void* scales) {
  if (format == WeightFormat::kInt8) {
    quantize_rows(kernels, weights, rows, cols, codes, static_cast<float*>(scales));
  } else {
    quantize_groups(kernels, quantizer(format), weights, rows, cols, codes,
                    static_cast<uint16_t*>(scales));
  }
}

}  // namespace

void quantize_weights(const KernelTable& kernels, WeightFormat format, const float* weights,
                      int64_t rows, int64_t cols, uint8_t* codes, void* scales) {
  quantize(kernels, format, weights, rows, cols, codes, scales);
}

void quantize_weights(const KernelTable& kernels, WeightFormat format, const uint16_t* bf16_weights,
                      int64_t rows, int64_t cols, uint8_t* codes, void* scales) {
  quantize(kernels, format, bf16_weights, rows, cols, codes, scales);
}

}  // namespace sparseflow
