// What a matrix that was read from storage must hold beside its weights: finite scales, clean
// padding.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "sparseflow/weight_format.h"

namespace sparseflow {
namespace {

// Where the byte with input k of a group lies among the [steps][16][4] bytes of that group; a step
// is 4 inputs in 8 bits, 8 in 4 bits and 16 in 2 bits.
int64_t place_in_group(int64_t k, int64_t inputs_per_step, int64_t lane) noexcept {
  return (k / inputs_per_step * kLanes + lane) * 4 + k % 4;
}

int stored_code(const MatrixView& w, int64_t row, int64_t col) noexcept {
  const int64_t group = row / kLanes * (round_up(w.cols, kGroup) / kGroup) + col / kGroup;
  const auto* codes =
      static_cast<const uint8_t*>(w.codes) + group * code_bytes(w.format, kLanes, kGroup);
  const int64_t k = col % kGroup;
  const int64_t lane = row % kLanes;
  if (code_offset(w.format) == 128) {
    return codes[place_in_group(k, 4, lane)];
  }
  const int low = codes[place_in_group(k, 8, lane)] >> (k % 8 / 4 * 4) & 15;
  if (code_offset(w.format) == 8) {
    return low;
  }
  const uint8_t* high_bits = codes + kLanes * kGroup / 2;
  return low | (high_bits[place_in_group(k, 16, lane)] >> (k % 16 / 4 * 2) & 3) << 4;
}

bool has_zero_scales(const MatrixView& w, int64_t row) noexcept {
  const int64_t item_bytes = scale_item_bytes(w.format);
  const int64_t num_groups = num_scales(w.format, kLanes, w.cols) / kLanes;
  const auto* scales = static_cast<const uint8_t*>(w.scales);
  for (int64_t group = 0; group < num_groups; ++group) {
    const int64_t at = ((row / kLanes * num_groups + group) * kLanes + row % kLanes) * item_bytes;
    for (int64_t i = 0; i < item_bytes; ++i) {
      if (scales[at + i] != 0) return false;
    }
  }
  return true;
}

template <typename Bits>
bool all_finite(const MatrixView& w, Bits exponent) noexcept {
  const int64_t count = num_scales(w.format, w.rows, w.cols);
  const auto* scales = static_cast<const uint8_t*>(w.scales);
  Bits largest = 0;  // no exit from the loop, so that it is compiled into vectors
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, scales + i * int64_t{sizeof(Bits)}, sizeof(Bits));
    largest = std::max(largest, static_cast<Bits>(bits & exponent));
  }
  return largest != exponent;
}

}  // namespace

bool has_clean_padding(const MatrixView& w) noexcept {
  if (!is_integer(w.format)) return true;
  const int offset = code_offset(w.format);
  const int64_t padded_cols = round_up(w.cols, kGroup);
  for (int64_t row = 0; row < round_up(w.rows, kLanes); ++row) {
    const bool is_padded = row >= w.rows;
    if (is_padded && !has_zero_scales(w, row)) return false;
    for (int64_t col = is_padded ? 0 : w.cols; col < padded_cols; ++col) {
      if (stored_code(w, row, col) != offset) return false;
    }
  }
  return true;
}

bool has_finite_scales(const MatrixView& w) noexcept {
  switch (scale_item_bytes(w.format)) {
    case 2:
      return all_finite<uint16_t>(w, 0x7C00);
    case 4:
      return all_finite<uint32_t>(w, 0x7F800000);
    default:
      return true;
  }
}

}  // namespace sparseflow
