// What the formats of kernel_table.h are called and how many bytes a matrix takes in each.
#pragma once

#include <cstdint>
#include <span>

#include "sparseflow/kernel_table.h"

namespace sparseflow {

// In the order in which messages list them.
std::span<const WeightFormat> weight_formats() noexcept;
const char* weight_format_name(WeightFormat format) noexcept;  // "bf16-v1", "int8-v1", ...

// Products take quantized activations.
bool is_integer(WeightFormat format) noexcept;
// Inputs that share a scale; 0 where a row has one or none.
int64_t scale_group(WeightFormat format) noexcept;
// Of one scale: 4 (float32), 2 (float16) or 0 (none).
int64_t scale_item_bytes(WeightFormat format) noexcept;

// Of a matrix [rows, cols], padding included.
int64_t code_bytes(WeightFormat format, int64_t rows, int64_t cols) noexcept;
int64_t num_scales(WeightFormat format, int64_t rows, int64_t cols) noexcept;
int64_t scale_bytes(WeightFormat format, int64_t rows, int64_t cols) noexcept;

// What an integer format adds to a code before it is stored, and so what padding holds; 0 for
// float formats.
int code_offset(WeightFormat format) noexcept;

// Whether what pads rows to 16 and inputs to 64 is the offset, and the scales of padded rows are
// zeros of positive sign. True for formats without padding.
bool has_clean_padding(const MatrixView& w) noexcept;
bool has_finite_scales(const MatrixView& w) noexcept;

// The rows of 16-row blocks [begin, end) as a matrix of their own.
MatrixView row_blocks(const MatrixView& w, int64_t begin, int64_t end) noexcept;

}  // namespace sparseflow
