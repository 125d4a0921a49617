// Computes a batch of tiles over the thread pool: gate, up and their product; then down and either
// accumulate or store.
#pragma once

#include <cstdint>
#include <span>

#include "sparseflow/runtime.h"
#include "sparseflow/sfi_file.h"

namespace sparseflow {

constexpr int64_t kTileRows = 128;

// One (token, expert) pair, or one token of the shared expert. Rows are numbered expert by expert
// in ascending id, the shared expert's last.
struct Row {
  int32_t token;
  float weight;
};

struct BatchShape {
  int64_t hidden_size;
  int64_t max_intermediate;  // the larger of routed and shared
  int64_t max_rows;          // of a batch
  bool has_integer;          // some weights are in an integer format
  bool has_float;            // some are not
};

// How many rows a batch may have so that its buffers stay within about 16 MiB, at least one tile.
int64_t max_batch_rows(int64_t hidden_size, int64_t max_intermediate) noexcept;

class Batch {
 public:
  // rows: all rows of the call. x: the layer's input [num_tokens, hidden_size], quantized if
  // has_integer. Both outlive the batch; its buffers come from the runtime's scratch.
  Batch(Runtime& runtime, const BatchShape& shape, std::span<const Row> rows, const Activations& x);

  int64_t room() const noexcept { return shape_.max_rows - num_rows_; }
  bool is_empty() const noexcept { return num_tiles_ == 0; }

  // Adds rows [first_row, first_row + num_rows) of one expert, cut into tiles. REQUIRES: num_rows
  // <= room().
  void add(const ExpertView& expert, int64_t first_row, int64_t num_rows);

  // out[token] = fma(weight, y, out[token]) for each row, in the order in which they were added;
  // empties the batch.
  void accumulate(float* out);

  // y[row] = the expert's output, y [all rows, hidden_size]; empties the batch.
  void store(float* y);

 private:
  // Rows of one expert that are computed together.
  struct Tile {
    ExpertView expert;
    int64_t first_row;
    int64_t num_rows;
    int64_t batch_row;  // where its rows lie in the batch's buffers
    Activations x;      // of its rows
    bool needs_gather;  // its tokens are not neighbours
  };

  const Row& row(int64_t i) const noexcept { return rows_[static_cast<size_t>(i)]; }
  float* thread_buffer(int thread) const noexcept {
    return thread_floats_ + thread * thread_stride_;
  }
  int64_t choose_chunk(int64_t total_blocks) const noexcept;
  void gather();
  void compute_hidden();
  void compute_hidden_blocks(const Tile& tile, int64_t begin, int64_t end, int thread);
  void quantize_hidden(const Tile& tile);
  Activations hidden_of(const Tile& tile) const noexcept;

  Runtime& runtime_;
  const KernelTable& kernels_;
  BatchShape shape_;
  std::span<const Row> rows_;
  Activations x_;

  // Buffers for max_rows rows. A tile's rows are dense in its own width from the place of its first
  // row on.
  int64_t inter_stride_;            // max_intermediate padded to 64
  float* hidden_;                   // [max_rows, inter_stride] silu(gate x) * (up x)
  int8_t* hidden_codes_ = nullptr;  // the same, quantized
  float* hidden_scales_ = nullptr;  // [max_rows, inter_stride / 64]
  int32_t* hidden_sums_ = nullptr;  // [max_rows, inter_stride / 32]
  float* x_rows_ = nullptr;         // [max_rows, hidden_size] gathered inputs
  int8_t* x_codes_ = nullptr;       // [max_rows, hidden_size padded to 64]
  float* x_scales_ = nullptr;
  int32_t* x_sums_ = nullptr;
  float* thread_floats_;  // [threads, thread_stride]
  int64_t thread_stride_;

  Tile* tiles_;          // [max_rows]: a tile has at least one row
  int32_t* items_left_;  // [max_rows] of each tile, while gate and up are computed
  int64_t* first_item_;  // [max_rows + 1]
  int64_t num_tiles_ = 0;
  int64_t num_rows_ = 0;
  int64_t chunk_ = 1;  // row blocks of an item of compute_hidden
};

}  // namespace sparseflow
