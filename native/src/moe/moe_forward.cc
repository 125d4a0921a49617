#include "sparseflow/moe_forward.h"

#include <algorithm>
#include <array>
#include <string>

#include "moe/batch.h"
#include "sparseflow/errors.h"
#include "sparseflow/ops.h"
#include "sparseflow/weight_format.h"

namespace sparseflow {
namespace {

constexpr int64_t kSampledTokens = 128;  // of a prompt, to advise the next layer
constexpr int64_t kSliceChannels = 512;  // of a work item that only adds up
constexpr int64_t kSerialTokens =
    4;  // so few shared_expert_gate logits are not worth waking threads

class MoeCall {
 public:
  MoeCall(Runtime& runtime, ExpertSource& source, const MoeLayer& call)
      : runtime_(runtime),
        kernels_(runtime.kernels()),
        source_(source),
        geometry_(source.geometry()),
        call_(call),
        num_pairs_(call.num_tokens * call.k),
        num_rows_(num_pairs_ + (call.shared != nullptr ? call.num_tokens : 0)) {}

  void run() {
    sort_pairs();
    source_.observe(call_.layer, call_.topk_ids, call_.k);
    // Reads start before anything is computed.
    ExpertLease first = acquire_wave(0);
    if (call_.ahead != nullptr) guess();
    const BatchShape shape = describe_batch();
    const Activations x = prepare_activations(runtime_, call_.x, call_.num_tokens,
                                              geometry_.hidden_size, shape.has_integer);
    if (call_.shared != nullptr) append_shared_rows();
    Batch batch(runtime_, shape, {rows_, static_cast<size_t>(num_rows_)}, x);
    first.poll();
    out_ = scratch<float>(call_.num_tokens * geometry_.hidden_size);
    const bool is_complete = first.size() == num_experts_ && count_delivered(first) == first.size();
    if (num_rows_ <= shape.max_rows && !is_complete) {
      compute_as_delivered(batch, std::move(first));
    } else {
      compute_ascending(batch, std::move(first));
    }
    add(runtime_, call_.residual, out_, call_.num_tokens * geometry_.hidden_size);
  }

 private:
  // Checks ids and sorts the pairs by expert; stable, so that an expert's tokens ascend.
  void sort_pairs() {
    const auto num_experts = geometry_.num_experts;
    auto* next = scratch<int64_t>(num_experts + 1);
    std::fill_n(next, num_experts + 1, 0);
    for (int64_t pair = 0; pair < num_pairs_; ++pair) {
      const int32_t id = id_at(pair);
      const bool ascends = pair % call_.k == 0 || id_at(pair - 1) < id;
      if (id < 0 || id >= num_experts || !ascends) throw_bad_ids(pair);
      ++next[id + 1];
    }
    experts_ = scratch<int32_t>(std::min(num_experts, num_pairs_));
    first_row_ = scratch<int64_t>(std::min(num_experts, num_pairs_) + 1);
    for (int64_t id = 0; id < num_experts; ++id) {
      if (next[id + 1] != 0) {
        experts_[num_experts_] = static_cast<int32_t>(id);
        first_row_[num_experts_++] = next[id];
      }
      next[id + 1] += next[id];
    }
    first_row_[num_experts_] = num_pairs_;
    rows_ = scratch<Row>(num_rows_);
    row_of_pair_ = scratch<int64_t>(num_pairs_);
    for (int64_t pair = 0; pair < num_pairs_; ++pair) {
      const int64_t row = next[id_at(pair)]++;
      rows_[row] = {static_cast<int32_t>(pair / call_.k),
                    call_.topk_weights[static_cast<size_t>(pair)]};
      row_of_pair_[pair] = row;
    }
  }

  [[noreturn]] void throw_bad_ids(int64_t pair) const {
    throw ConfigError("topk_ids: row " + std::to_string(pair / call_.k) + " holds " +
                      std::to_string(id_at(pair)) + "; ids must be 0 to " +
                      std::to_string(geometry_.num_experts - 1) + ", ascending and distinct");
  }

  BatchShape describe_batch() const {
    BatchShape shape{};
    shape.hidden_size = geometry_.hidden_size;
    shape.max_intermediate = geometry_.moe_intermediate_size;
    shape.has_integer = is_integer(geometry_.format);
    shape.has_float = !shape.has_integer;
    if (call_.shared != nullptr) {
      for (const MatrixView* w : {&call_.shared->gate, &call_.shared->down}) {
        (is_integer(w->format) ? shape.has_integer : shape.has_float) = true;
      }
      shape.max_intermediate = std::max(shape.max_intermediate, call_.shared->gate.rows);
    }
    shape.max_rows = max_batch_rows(shape.hidden_size, shape.max_intermediate);
    return shape;
  }

  // The shared expert's rows are weighted by sigmoid(gate_logit . x).
  void append_shared_rows() {
    auto* logits = scratch<float>(call_.num_tokens);
    const auto compute = [&](int64_t token, int) {
      const Activations x{call_.x + token * geometry_.hidden_size, geometry_.hidden_size, nullptr,
                          nullptr, nullptr};
      kernels_.matmul(call_.shared->gate_logit, 0, 1, x, 1, logits + token, 1);
    };
    if (call_.num_tokens <= kSerialTokens) {
      for (int64_t token = 0; token < call_.num_tokens; ++token) compute(token, 0);
    } else {
      runtime_.pool().parallel_for(call_.num_tokens, compute);
    }
    kernels_.sigmoid(logits, call_.num_tokens, logits);
    for (int64_t token = 0; token < call_.num_tokens; ++token) {
      rows_[num_pairs_ + token] = {static_cast<int32_t>(token), logits[token]};
    }
  }

  // A wave is what one lease takes. Where there are several, each takes half of what the source can
  // lease at a time, so that the next is read while one computes.
  int64_t wave_size() const {
    const int64_t max = source_.max_lease();
    return num_experts_ <= max ? num_experts_ : std::max<int64_t>(1, max / 2);
  }

  std::span<const int32_t> wave(int64_t first) const {
    const int64_t count = std::min(wave_size(), num_experts_ - first);
    return {experts_ + first, static_cast<size_t>(count)};
  }

  ExpertLease acquire_wave(int64_t first) { return source_.acquire(call_.layer, wave(first)); }

  // Leases the waves after the one that computes now, as far as there is room: where most experts
  // of a wave are in memory, one wave ahead would leave nothing to read.
  void prefetch_waves(int64_t next) {
    next_ahead_ = std::max(next_ahead_, next);
    while (num_ahead_ < kMaxAhead && next_ahead_ < num_experts_) {
      ExpertLease lease = source_.try_acquire(call_.layer, wave(next_ahead_));
      if (!lease) return;
      next_ahead_ += lease.size();
      ahead_[(first_ahead_ + num_ahead_++) % kMaxAhead] = std::move(lease);
    }
  }

  // Gives back `current` and returns the lease that starts at expert number `next`.
  ExpertLease advance(ExpertLease current, int64_t next) {
    current = ExpertLease{};
    if (next >= num_experts_) return {};
    if (num_ahead_ == 0) return acquire_wave(next);
    ExpertLease following = std::move(ahead_[first_ahead_]);
    first_ahead_ = (first_ahead_ + 1) % kMaxAhead;
    --num_ahead_;
    return following;
  }

  // Guesses what the next layer will choose, while this one's reads are under way.
  void look_ahead() {
    const LookAhead& next = *call_.ahead;
    auto* x = scratch<float>(geometry_.hidden_size);
    auto* ids = scratch<int32_t>(call_.k);
    auto* weights = scratch<float>(call_.k);
    if (route_block(runtime_, next.router, call_.residual, 1, call_.k, x, ids, weights)) {
      source_.read_ahead(next.layer, {ids, static_cast<size_t>(call_.k)});
    }
  }

  void guess() {
    if (call_.num_tokens == 1) {
      if (call_.ahead->guesses_steps) look_ahead();
    } else if (source_.wants_advice()) {
      advise();
    }
  }

  // Tells which experts of the next layer the prompt will need, by a sample of its tokens.
  void advise() {
    const LookAhead& next = *call_.ahead;
    const int64_t hidden = geometry_.hidden_size;
    const int64_t count = std::min(call_.num_tokens, kSampledTokens);
    auto* x = scratch<float>(2 * count * hidden);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(call_.residual + i * call_.num_tokens / count * hidden, hidden, x + i * hidden);
    }
    auto* ids = scratch<int32_t>(count * call_.k);
    auto* weights = scratch<float>(count * call_.k);
    if (!route_block(runtime_, next.router, x, count, call_.k, x + count * hidden, ids, weights)) {
      return;
    }
    auto* votes = scratch<int32_t>(geometry_.num_experts);
    std::fill_n(votes, geometry_.num_experts, 0);
    for (int64_t pair = 0; pair < count * call_.k; ++pair) ++votes[ids[pair]];
    auto* needed = scratch<int32_t>(geometry_.num_experts);
    int64_t num_needed = 0;
    for (int64_t expert = 0; expert < geometry_.num_experts; ++expert) {
      if (votes[expert] > 1) needed[num_needed++] = static_cast<int32_t>(expert);
    }
    source_.prefetch(next.layer, {needed, static_cast<size_t>(num_needed)});
  }

  static int count_delivered(const ExpertLease& lease) {
    int count = 0;
    for (int i = 0; i < lease.size(); ++i) count += lease.is_delivered(i) ? 1 : 0;
    return count;
  }

  int64_t rows_of(int64_t expert) const { return first_row_[expert + 1] - first_row_[expert]; }
  int32_t id_at(int64_t pair) const { return call_.topk_ids[static_cast<size_t>(pair)]; }
  ExpertView view(const ExpertLease& lease, int i) const {
    return expert_view(geometry_, lease.blob(i));
  }
  ExpertView shared_view() const {
    return {call_.shared->gate, call_.shared->up, call_.shared->down};
  }

  template <typename T>
  T* scratch(int64_t count) {
    return static_cast<T*>(runtime_.scratch().bytes(count * int64_t{sizeof(T)}));
  }

  // Few rows: whatever is there computes, each row into its own place; the sum comes last.
  void compute_as_delivered(Batch& batch, ExpertLease lease) {
    auto* y = scratch<float>(num_rows_ * geometry_.hidden_size);
    if (call_.shared != nullptr) batch.add(shared_view(), num_pairs_, call_.num_tokens);
    for (int64_t first = 0; first < num_experts_;) {
      const int64_t next = first + lease.size();
      prefetch_waves(next);
      compute_wave(batch, lease, first, y);
      lease = advance(std::move(lease), next);
      first = next;
    }
    add_up(y);
  }

  void compute_wave(Batch& batch, ExpertLease& lease, int64_t first, float* y) {
    auto* is_added = scratch<bool>(lease.size());
    std::fill_n(is_added, lease.size(), false);
    int num_added = 0;
    while (num_added < lease.size()) {
      lease.poll();
      const int before = num_added;
      for (int i = 0; i < lease.size(); ++i) {
        if (is_added[i] || !lease.is_delivered(i)) continue;
        batch.add(view(lease, i), first_row_[first + i], rows_of(first + i));
        is_added[i] = true;
        ++num_added;
      }
      if (!batch.is_empty()) batch.store(y);
      if (num_added == before) lease.wait_any();
    }
  }

  // Work items are slices of a token's channels; within one, experts follow in ascending id.
  void add_up(const float* y) {
    const int64_t hidden = geometry_.hidden_size;
    const int64_t slices = (hidden + kSliceChannels - 1) / kSliceChannels;
    runtime_.pool().parallel_for(call_.num_tokens * slices, [&](int64_t item, int) {
      const int64_t token = item / slices;
      const int64_t channel = item % slices * kSliceChannels;
      const int64_t count = std::min(kSliceChannels, hidden - channel);
      float* out = out_ + token * hidden + channel;
      std::fill_n(out, count, 0.0f);
      for (int64_t pair = token * call_.k; pair < (token + 1) * call_.k; ++pair) {
        const int64_t row = row_of_pair_[pair];
        kernels_.multiply_add(rows_[row].weight, y + row * hidden + channel, count, out);
      }
      if (call_.shared != nullptr) {
        const int64_t row = num_pairs_ + token;
        kernels_.multiply_add(rows_[row].weight, y + row * hidden + channel, count, out);
      }
    });
  }

  // Many rows, or nothing to wait for: strictly ascending, batch after batch, while later experts
  // are read.
  void compute_ascending(Batch& batch, ExpertLease lease) {
    std::fill_n(out_, call_.num_tokens * geometry_.hidden_size, 0.0f);
    for (int64_t first = 0; first < num_experts_;) {
      const int64_t next = first + lease.size();
      prefetch_waves(next);
      for (int i = 0; i < lease.size(); ++i) {
        while (!lease.is_delivered(i)) {
          // What is there computes while this one is still under way.
          if (!batch.is_empty()) batch.accumulate(out_);
          lease.poll();
          if (!lease.is_delivered(i)) lease.wait_any();
        }
        add_rows(batch, view(lease, i), first_row_[first + i], rows_of(first + i));
      }
      // The batch points into the lease; the last wave may go on together with the shared expert.
      if (next < num_experts_ && !batch.is_empty()) batch.accumulate(out_);
      if (next == num_experts_) {
        if (call_.shared != nullptr) add_rows(batch, shared_view(), num_pairs_, call_.num_tokens);
        if (!batch.is_empty()) batch.accumulate(out_);
      }
      lease = advance(std::move(lease), next);
      first = next;
    }
  }

  // Adds rows of an expert, computing whenever the batch is full.
  void add_rows(Batch& batch, const ExpertView& expert, int64_t first_row, int64_t num_rows) {
    while (num_rows > 0) {
      if (batch.room() == 0) batch.accumulate(out_);
      const int64_t count = std::min(num_rows, batch.room());
      batch.add(expert, first_row, count);
      first_row += count;
      num_rows -= count;
    }
  }

  Runtime& runtime_;
  const KernelTable& kernels_;
  ExpertSource& source_;
  const SfiGeometry& geometry_;
  const MoeLayer& call_;
  int64_t num_pairs_;
  int64_t num_rows_;
  int64_t num_experts_ = 0;         // chosen by at least one token
  int32_t* experts_ = nullptr;      // [num_experts_] their ids, ascending
  int64_t* first_row_ = nullptr;    // [num_experts_ + 1] of each of them
  Row* rows_ = nullptr;             // [num_rows_]
  float* out_ = nullptr;            // [num_tokens, hidden_size]
  int64_t* row_of_pair_ = nullptr;  // [num_pairs_]

  static constexpr size_t kMaxAhead = 4;
  std::array<ExpertLease, kMaxAhead> ahead_;  // leases of later waves, a ring
  size_t first_ahead_ = 0;
  size_t num_ahead_ = 0;
  int64_t next_ahead_ = 0;  // the expert number after the last of them
};

}  // namespace

void moe_forward(Runtime& runtime, ExpertSource& source, const MoeLayer& call) {
  if (call.num_tokens == 0) return;
  const std::lock_guard lock(source.compute_mutex());
  MoeCall(runtime, source, call).run();
}

}  // namespace sparseflow
