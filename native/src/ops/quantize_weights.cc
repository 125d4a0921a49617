// Weights to the int8-v1 format. Plain IEEE arithmetic compiled for the baseline: container bytes
// do not depend on the CPU.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "sparseflow/errors.h"
#include "sparseflow/float_environment.h"
#include "sparseflow/ops.h"

namespace sparseflow {
namespace {

void widen(const float* row, int64_t cols, float* out) {
  std::memcpy(out, row, static_cast<size_t>(cols) * 4);
}

void widen(const uint16_t* row, int64_t cols, float* out) {
  for (int64_t i = 0; i < cols; ++i) {
    const uint32_t bits = static_cast<uint32_t>(row[i]) << 16;
    std::memcpy(out + i, &bits, 4);
  }
}

// Magnitudes are compared as integers: same order, one pass also finds what is not finite, and the
// loop has no branch.
float row_scale(const float* x, int64_t cols, int64_t row) {
  int32_t largest = 0;
  for (int64_t i = 0; i < cols; ++i) {
    largest = std::max(largest, std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF);
  }
  if (largest >= 0x7F800000) {
    throw ConfigError("weights: row " + std::to_string(row) +
                      " has a value that is not finite; it cannot be quantized");
  }
  return std::bit_cast<float>(largest) / 127.0F;
}

// Rounds half to even by adding 1.5 * 2^23, whose low bits then hold the code; x / scale is at most
// about 190, even for a subnormal scale.
void encode_row(const float* x, int64_t padded, float scale, uint8_t* codes) {
  for (int64_t k = 0; k < padded; ++k) {
    const int32_t code = std::bit_cast<int32_t>(x[k] / scale + 0x1.8p23F) - 0x4B400000;
    codes[k] = static_cast<uint8_t>(std::min(std::max(code, -127), 127) + 128);
  }
}

template <typename Weight>
void quantize(const Weight* weights, int64_t rows, int64_t cols, uint8_t* codes, float* scales) {
  const FloatEnvironment environment;
  const int64_t padded = round_up(cols, kGroup);
  std::vector<float> x(static_cast<size_t>(padded), 0.0F);
  std::vector<uint8_t> row_codes(static_cast<size_t>(padded));
  for (int64_t row = 0; row < round_up(rows, kLanes); ++row) {
    std::fill(row_codes.begin(), row_codes.end(), uint8_t{128});
    scales[row] = 0.0F;
    if (row < rows) {
      widen(weights + row * cols, cols, x.data());
      scales[row] = row_scale(x.data(), cols, row);
      if (scales[row] != 0.0F) {
        encode_row(x.data(), padded, scales[row], row_codes.data());
      }
    }
    uint8_t* out = codes + row / kLanes * kLanes * padded + row % kLanes * 4;
    for (int64_t k = 0; k < padded; k += 4) {
      std::memcpy(out + k * kLanes, row_codes.data() + k, 4);
    }
  }
}

}  // namespace

void quantize_int8(const float* weights, int64_t rows, int64_t cols, uint8_t* codes,
                   float* scales) {
  quantize(weights, rows, cols, codes, scales);
}

void quantize_int8(const uint16_t* bf16_weights, int64_t rows, int64_t cols, uint8_t* codes,
                   float* scales) {
  quantize(bf16_weights, rows, cols, codes, scales);
}

}  // namespace sparseflow
