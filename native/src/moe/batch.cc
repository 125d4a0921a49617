#include "moe/batch.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>

#include "sparseflow/weight_format.h"

namespace sparseflow {
namespace {

constexpr int64_t kBatchBytes = int64_t{16} << 20;
constexpr int64_t kMaxBatchRows = 512;
constexpr int64_t kMaxChunk = 8;  // row blocks: gate and up of a tile then fit a core's own cache
constexpr int64_t kItemsPerThread = 8;  // enough for fast and slow cores to even out

int64_t num_blocks(int64_t rows) noexcept { return round_up(rows, kLanes) / kLanes; }

// The input rows from token on, as a matmul takes them.
Activations input_rows(const Activations& x, int64_t token, int64_t padded_cols) noexcept {
  const int64_t groups = padded_cols / kGroup;
  Activations part = x;
  part.x = x.x + token * x.x_stride;
  if (x.codes != nullptr) {
    part.codes = x.codes + token * padded_cols;
    part.scales = x.scales + token * groups;
    part.sums = x.sums + token * 2 * groups;
  }
  return part;
}

}  // namespace

int64_t max_batch_rows(int64_t hidden_size, int64_t max_intermediate) noexcept {
  const int64_t row_bytes =
      6 * round_up(max_intermediate, kGroup) + 10 * round_up(hidden_size, kGroup);
  return std::clamp(kBatchBytes / row_bytes, kTileRows, kMaxBatchRows);
}

Batch::Batch(Runtime& runtime, const BatchShape& shape, std::span<const Row> rows,
             const Activations& x)
    : runtime_(runtime), kernels_(runtime.kernels()), shape_(shape), rows_(rows), x_(x) {
  Scratch& scratch = runtime.scratch();
  shape_.max_rows = std::min(shape.max_rows, static_cast<int64_t>(rows.size()));
  const int64_t n = shape_.max_rows;
  const int64_t inter = round_up(shape.max_intermediate, kGroup);
  const int64_t hidden = round_up(shape.hidden_size, kGroup);
  inter_stride_ = inter;
  hidden_ = scratch.floats(n * inter);
  if (shape.has_integer) {
    hidden_codes_ = static_cast<int8_t*>(scratch.bytes(n * inter));
    hidden_scales_ = scratch.floats(n * inter / kGroup);
    hidden_sums_ = static_cast<int32_t*>(scratch.bytes(n * inter / kHalfGroup * 4));
  }
  if (n > 1) {
    if (shape.has_float) x_rows_ = scratch.floats(n * shape.hidden_size);
    if (shape.has_integer) {
      x_codes_ = static_cast<int8_t*>(scratch.bytes(n * hidden));
      x_scales_ = scratch.floats(n * hidden / kGroup);
      x_sums_ = static_cast<int32_t*>(scratch.bytes(n * hidden / kHalfGroup * 4));
    }
  }
  thread_stride_ = 2 * std::min(kTileRows, n) * kMaxChunk * kLanes;
  thread_floats_ = scratch.floats(thread_stride_ * runtime.pool().num_threads());
  tiles_ = static_cast<Tile*>(scratch.bytes(n * int64_t{sizeof(Tile)}));
  items_left_ = static_cast<int32_t*>(scratch.bytes(n * int64_t{sizeof(int32_t)}));
  first_item_ = static_cast<int64_t*>(scratch.bytes((n + 1) * int64_t{sizeof(int64_t)}));
}

void Batch::add(const ExpertView& expert, int64_t first_row, int64_t num_rows) {
  assert(num_rows <= room());
  const int64_t hidden = round_up(shape_.hidden_size, kGroup);
  const int64_t groups = hidden / kGroup;
  while (num_rows > 0) {
    const int64_t n = std::min(num_rows, kTileRows);
    const int64_t token = row(first_row).token;
    bool has_neighbours = true;
    for (int64_t i = 1; i < n; ++i) has_neighbours &= row(first_row + i).token == token + i;
    Tile& tile = tiles_[num_tiles_++];
    tile = {expert, first_row, n, num_rows_, input_rows(x_, token, hidden), !has_neighbours};
    if (tile.needs_gather) {
      const int64_t at = tile.batch_row;
      tile.x = {x_rows_ == nullptr ? nullptr : x_rows_ + at * shape_.hidden_size,
                shape_.hidden_size, x_codes_ == nullptr ? nullptr : x_codes_ + at * hidden,
                x_scales_ == nullptr ? nullptr : x_scales_ + at * groups,
                x_sums_ == nullptr ? nullptr : x_sums_ + at * 2 * groups};
    }
    num_rows_ += n;
    first_row += n;
    num_rows -= n;
  }
}

// Copies the inputs of tiles whose tokens are not neighbours into rows that are.
void Batch::gather() {
  const bool any =
      std::any_of(tiles_, tiles_ + num_tiles_, [](const Tile& t) { return t.needs_gather; });
  if (!any) return;
  const int64_t hidden = round_up(shape_.hidden_size, kGroup);
  const auto groups = static_cast<size_t>(hidden / kGroup);
  runtime_.pool().parallel_for(num_tiles_, [&](int64_t index, int) {
    const Tile& tile = tiles_[index];
    if (!tile.needs_gather) return;
    const bool integer = is_integer(tile.expert.gate.format);
    for (int64_t i = 0; i < tile.num_rows; ++i) {
      const Activations from = input_rows(x_, row(tile.first_row + i).token, hidden);
      const int64_t at = tile.batch_row + i;
      if (!integer) {
        std::memcpy(x_rows_ + at * shape_.hidden_size, from.x,
                    static_cast<size_t>(shape_.hidden_size) * sizeof(float));
        continue;
      }
      std::memcpy(x_codes_ + at * hidden, from.codes, static_cast<size_t>(hidden));
      std::memcpy(x_scales_ + static_cast<size_t>(at) * groups, from.scales,
                  groups * sizeof(float));
      std::memcpy(x_sums_ + static_cast<size_t>(at) * 2 * groups, from.sums,
                  2 * groups * sizeof(int32_t));
    }
  });
}

// Row blocks of an item: many items for many threads, but large ones where there is enough work.
int64_t Batch::choose_chunk(int64_t total_blocks) const noexcept {
  const int64_t wanted = kItemsPerThread * runtime_.pool().num_threads();
  return std::clamp<int64_t>(total_blocks / wanted, 1, kMaxChunk);
}

void Batch::compute_hidden() {
  int64_t total_blocks = 0;
  for (int64_t i = 0; i < num_tiles_; ++i) total_blocks += num_blocks(tiles_[i].expert.gate.rows);
  chunk_ = choose_chunk(total_blocks);
  int64_t num_items = 0;
  for (int64_t i = 0; i < num_tiles_; ++i) {
    const int64_t items = (num_blocks(tiles_[i].expert.gate.rows) + chunk_ - 1) / chunk_;
    first_item_[i] = num_items;
    items_left_[i] = static_cast<int32_t>(items);
    num_items += items;
  }
  runtime_.pool().parallel_for(num_items, [this](int64_t item, int thread) {
    const int64_t* const next = std::upper_bound(first_item_, first_item_ + num_tiles_, item);
    const int64_t index = next - first_item_ - 1;
    const Tile& tile = tiles_[index];
    const int64_t begin = (item - first_item_[index]) * chunk_;
    const int64_t end = std::min(begin + chunk_, num_blocks(tile.expert.gate.rows));
    compute_hidden_blocks(tile, begin, end, thread);
    // Who finishes a tile quantizes it: no barrier, and the rows are still in some core's cache.
    const bool is_last =
        std::atomic_ref(items_left_[index]).fetch_sub(1, std::memory_order_acq_rel) == 1;
    if (is_last && is_integer(tile.expert.down.format)) quantize_hidden(tile);
  });
}

void Batch::compute_hidden_blocks(const Tile& tile, int64_t begin, int64_t end, int thread) {
  const MatrixView gate = row_blocks(tile.expert.gate, begin, end);
  const MatrixView up = row_blocks(tile.expert.up, begin, end);
  const int64_t width = gate.rows;
  float* gates = thread_buffer(thread);
  float* ups = gates + thread_stride_ / 2;
  kernels_.matmul(gate, 0, end - begin, tile.x, tile.num_rows, gates, width);
  kernels_.matmul(up, 0, end - begin, tile.x, tile.num_rows, ups, width);
  for (int64_t i = 0; i < tile.num_rows; ++i) {
    float* out = hidden_ + (tile.batch_row + i) * inter_stride_ + begin * kLanes;
    kernels_.silu_multiply(gates + i * width, ups + i * width, width, out);
  }
}

Activations Batch::hidden_of(const Tile& tile) const noexcept {
  const int64_t at = tile.batch_row;
  const int64_t groups = inter_stride_ / kGroup;
  if (!is_integer(tile.expert.down.format)) {
    return {hidden_ + at * inter_stride_, inter_stride_, nullptr, nullptr, nullptr};
  }
  return {hidden_ + at * inter_stride_, inter_stride_, hidden_codes_ + at * inter_stride_,
          hidden_scales_ + at * groups, hidden_sums_ + at * 2 * groups};
}

void Batch::quantize_hidden(const Tile& tile) {
  const int64_t cols = tile.expert.down.cols;
  const int64_t padded = round_up(cols, kGroup);
  const int64_t groups = padded / kGroup;
  const int64_t at = tile.batch_row;
  for (int64_t i = 0; i < tile.num_rows; ++i) {
    kernels_.quantize(hidden_ + (at + i) * inter_stride_, cols,
                      hidden_codes_ + at * inter_stride_ + i * padded,
                      hidden_scales_ + at * (inter_stride_ / kGroup) + i * groups,
                      hidden_sums_ + at * (inter_stride_ / kHalfGroup) + i * 2 * groups);
  }
}

void Batch::accumulate(float* out) {
  gather();
  compute_hidden();
  const int64_t blocks = num_blocks(shape_.hidden_size);
  const int64_t chunk = choose_chunk(blocks);
  // An item is a slice of channels of every token, so that tiles follow one another within it and
  // need no barrier.
  runtime_.pool().parallel_for((blocks + chunk - 1) / chunk, [&](int64_t item, int thread) {
    const int64_t begin = item * chunk;
    const int64_t end = std::min(begin + chunk, blocks);
    float* y = thread_buffer(thread);
    for (int64_t index = 0; index < num_tiles_; ++index) {
      const Tile& tile = tiles_[index];
      const MatrixView down = row_blocks(tile.expert.down, begin, end);
      kernels_.matmul(down, 0, end - begin, hidden_of(tile), tile.num_rows, y, down.rows);
      for (int64_t i = 0; i < tile.num_rows; ++i) {
        const Row& r = row(tile.first_row + i);
        kernels_.multiply_add(r.weight, y + i * down.rows, down.rows,
                              out + r.token * shape_.hidden_size + begin * kLanes);
      }
    }
  });
  num_tiles_ = num_rows_ = 0;
}

void Batch::store(float* y) {
  gather();
  compute_hidden();
  const int64_t blocks = num_blocks(shape_.hidden_size);
  const int64_t chunk = choose_chunk(blocks * num_tiles_);
  const int64_t items = (blocks + chunk - 1) / chunk;
  runtime_.pool().parallel_for(items * num_tiles_, [&](int64_t item, int) {
    const Tile& tile = tiles_[item / items];
    const int64_t begin = item % items * chunk;
    const int64_t end = std::min(begin + chunk, blocks);
    const MatrixView down = row_blocks(tile.expert.down, begin, end);
    float* rows = y + tile.first_row * shape_.hidden_size + begin * kLanes;
    kernels_.matmul(down, 0, end - begin, hidden_of(tile), tile.num_rows, rows, shape_.hidden_size);
  });
  num_tiles_ = num_rows_ = 0;
}

}  // namespace sparseflow
