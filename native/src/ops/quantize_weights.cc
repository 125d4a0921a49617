// Weights to the int8-v1 format. Plain IEEE arithmetic compiled for the baseline: container bytes
// do not depend on the CPU.

#include <algorithm>
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

float row_scale(const float* x, int64_t cols, int64_t row) {
  if (!is_finite(x, cols)) {
    throw ConfigError("weights: row " + std::to_string(row) +
                      " has a value that is not finite; it cannot be quantized");
  }
  float amax = 0.0F;
  for (int64_t i = 0; i < cols; ++i) {
    const float magnitude = x[i] < 0.0F ? -x[i] : x[i];
    amax = std::max(amax, magnitude);
  }
  return amax / 127.0F;
}

// Round half to even by adding 1.5 * 2^23; x / scale is at most about 190 even for a subnormal
// scale.
void encode_row(const float* x, int64_t padded, float scale, uint8_t* codes) {
  for (int64_t k = 0; k < padded; ++k) {
    const float rounded = (x[k] / scale + 0x1.8p23F) - 0x1.8p23F;
    const float clamped = std::min(std::max(rounded, -127.0F), 127.0F);
    codes[k] = static_cast<uint8_t>(static_cast<int>(clamped) + 128);
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
