#include "sparseflow/weight_format.h"

#include <algorithm>
#include <cstddef>

namespace sparseflow {
namespace {

constexpr WeightFormat kFormats[] = {
    WeightFormat::kBf16,    WeightFormat::kInt8,    WeightFormat::kInt8G64, WeightFormat::kInt6G64,
    WeightFormat::kInt4G64, WeightFormat::kInt4G32, WeightFormat::kFloat32};

int64_t bits_per_code(WeightFormat format) noexcept {
  switch (format) {
    case WeightFormat::kBf16:
      return 16;
    case WeightFormat::kFloat32:
      return 32;
    case WeightFormat::kInt8:
    case WeightFormat::kInt8G64:
      return 8;
    case WeightFormat::kInt6G64:
      return 6;
    case WeightFormat::kInt4G64:
    case WeightFormat::kInt4G32:
      return 4;
  }
  return 0;
}

}  // namespace

std::span<const WeightFormat> weight_formats() noexcept { return kFormats; }

const char* weight_format_name(WeightFormat format) noexcept {
  switch (format) {
    case WeightFormat::kBf16:
      return "bf16-v1";
    case WeightFormat::kInt8:
      return "int8-v1";
    case WeightFormat::kInt4G64:
      return "int4-g64-v1";
    case WeightFormat::kFloat32:
      return "float32";
    case WeightFormat::kInt8G64:
      return "int8-g64-v1";
    case WeightFormat::kInt6G64:
      return "int6-g64-v1";
    case WeightFormat::kInt4G32:
      return "int4-g32-v1";
  }
  return "unknown";
}

bool is_integer(WeightFormat format) noexcept { return bits_per_code(format) <= 8; }

int64_t scale_group(WeightFormat format) noexcept {
  if (!is_integer(format) || format == WeightFormat::kInt8) return 0;
  return format == WeightFormat::kInt4G32 ? kHalfGroup : kGroup;
}

int64_t scale_item_bytes(WeightFormat format) noexcept {
  return scale_group(format) != 0 ? 2 : is_integer(format) ? 4 : 0;
}

int64_t code_bytes(WeightFormat format, int64_t rows, int64_t cols) noexcept {
  const int64_t bits = bits_per_code(format);
  return is_integer(format) ? round_up(rows, kLanes) * round_up(cols, kGroup) / 8 * bits
                            : rows * cols * (bits / 8);
}

int64_t num_scales(WeightFormat format, int64_t rows, int64_t cols) noexcept {
  if (!is_integer(format)) return 0;
  const int64_t groups =
      scale_group(format) != 0 ? round_up(cols, kGroup) / scale_group(format) : 1;
  return round_up(rows, kLanes) * groups;
}

int64_t scale_bytes(WeightFormat format, int64_t rows, int64_t cols) noexcept {
  return num_scales(format, rows, cols) * scale_item_bytes(format);
}

int code_offset(WeightFormat format) noexcept {
  return is_integer(format) ? 1 << (bits_per_code(format) - 1) : 0;
}

MatrixView row_blocks(const MatrixView& w, int64_t begin, int64_t end) noexcept {
  const int64_t first = begin * kLanes;
  MatrixView part = w;
  part.rows = std::min(w.rows, end * kLanes) - first;
  part.codes = static_cast<const std::byte*>(w.codes) + code_bytes(w.format, first, w.cols);
  if (w.scales != nullptr) {
    part.scales = static_cast<const std::byte*>(w.scales) + scale_bytes(w.format, first, w.cols);
  }
  return part;
}

}  // namespace sparseflow
