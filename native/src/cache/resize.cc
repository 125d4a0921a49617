// ExpertCache::resize: which experts stay, which segments go, and how they come back.
#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "sparseflow/expert_cache.h"

namespace sparseflow {

int64_t ExpertCache::resize(CacheRequest request) {
  const std::lock_guard one_at_a_time(resize_mutex_);
  const int64_t in_segment = arena_.slots_per_segment();
  const int64_t all = arena_.num_segments();
  const int64_t min_slots = std::min(kMinSlots, full_.num_slots);
  const int64_t fewest = std::min(all, (min_slots + in_segment - 1) / in_segment);
  const int64_t wanted = request.capacity_bytes / full_.slot_bytes;
  int64_t num_segments = all;
  if (wanted < full_.num_slots) {
    // Without the last segment all have the same number of slots.
    num_segments = std::max(fewest, std::min(wanted / in_segment, all - 1));
  }
  CacheLayout layout = full_;
  if (num_segments < all) {
    request.capacity_bytes = num_segments * in_segment * full_.slot_bytes;
    layout = plan_cache(request);
    layout.max_lease = std::min(layout.max_lease, full_.max_lease);
  }
  std::unique_lock lock(mutex_);
  const int64_t change = num_segments - num_open_;
  if (change == 0) return layout_.arena_bytes();
  layout_ = std::move(layout);
  least_slots_ = std::min(least_slots_, layout_.num_slots);
  ++(change < 0 ? counters_.shrinks : counters_.grows);
  recount_shares();
  trim_shares();  // also when it grows: one pool, that layers share unevenly, may become shares
  if (change < 0) {
    close_segments(-change, lock);
  } else {
    open_segments(change);
  }
  const int64_t allowed = layout_.arena_bytes();
  submit_all(lock);
  changed_.notify_all();
  return allowed;
}

ArenaUse ExpertCache::arena_use() const {
  const std::lock_guard lock(mutex_);
  int64_t num_held = 0;
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].state == SegmentState::kClosed) continue;
    num_held += arena_.num_slots_in(static_cast<int64_t>(i));
  }
  return {full_.arena_bytes(),
          layout_.arena_bytes(),
          num_held * full_.slot_bytes,
          num_touched_ * full_.slot_bytes,
          least_slots_ * full_.slot_bytes,
          arena_.slots_per_segment() * full_.slot_bytes,
          num_open_};
}

void ExpertCache::recount_shares() {
  num_admitted_.assign(layout_.layer_capacity.size(), 0);
  num_coming_.assign(layout_.layer_capacity.size(), 0);
  for (const Slot& slot : slots_) {
    if (slot.is_admitted) ++num_admitted_[share(slot.key.layer)];
    const bool is_kept = slot.state == SlotState::kAhead && slot.errand != Errand::kGuess;
    if (is_kept) ++num_coming_[share(slot.key.layer)];
  }
}

// Gives up what a share holds beyond its new capacity: the smallest scores first, but what the
// layer's token or prompt still needs last. What is leased now follows when it comes back.
void ExpertCache::trim_shares() {
  using Rank = std::tuple<bool, double, size_t, int32_t>;
  std::vector<std::vector<Rank>> ranks(num_admitted_.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.state != SlotState::kReady) continue;
    const bool is_needed = is_expected(slot.key) || is_of_step(slot.key);
    ranks[share(slot.key.layer)].emplace_back(is_needed, policy_->score(slot.key), index(slot.key),
                                              static_cast<int32_t>(i));
  }
  for (size_t at = 0; at < ranks.size(); ++at) {
    const int64_t excess = num_admitted_[at] - layout_.layer_capacity[at];
    if (excess <= 0) continue;
    const auto count = std::min(static_cast<size_t>(excess), ranks[at].size());
    std::sort(ranks[at].begin(), ranks[at].end());
    for (size_t i = 0; i < count; ++i) forget(std::get<int32_t>(ranks[at][i]));
  }
}

// The emptiest segments, so that the least must move; the last one, which may be shorter, first.
std::vector<int64_t> ExpertCache::choose_closing(int64_t count) const {
  std::vector<int64_t> occupied(segments_.size(), 0);
  for (size_t i = 0; i < slots_.size(); ++i) {
    const bool is_occupied = slots_[i].state != SlotState::kEmpty;
    occupied[static_cast<size_t>(arena_.segment_of(static_cast<int64_t>(i)))] += is_occupied;
  }
  occupied.back() = -1;
  std::vector<int64_t> chosen;
  for (auto i = static_cast<int64_t>(segments_.size()); i-- > 0;) {
    if (segments_[static_cast<size_t>(i)].state == SegmentState::kOpen) chosen.push_back(i);
  }
  std::stable_sort(chosen.begin(), chosen.end(), [&](int64_t a, int64_t b) {
    return occupied[static_cast<size_t>(a)] < occupied[static_cast<size_t>(b)];
  });
  chosen.resize(static_cast<size_t>(count));
  return chosen;
}

// Others may use the cache between two segments: a move is a copy of some MiB.
void ExpertCache::close_segments(int64_t count, std::unique_lock<std::mutex>& lock) {
  drop_spares(-1, {});
  const std::vector<int64_t> chosen = choose_closing(count);
  std::vector<int32_t> empty;
  empty.reserve(free_.size());
  num_open_ -= count;
  for (const int64_t segment : chosen) {
    segments_[static_cast<size_t>(segment)].state = SegmentState::kClosing;
  }
  for (const int32_t which : free_) {
    if (is_closing(which)) empty.push_back(which);
  }
  std::erase_if(free_, [this](int32_t which) { return is_closing(which); });
  for (const int32_t which : empty) retire(which);
  for (const int64_t segment : chosen) {
    vacate(segment);
    lock.unlock();
    changed_.notify_all();
    lock.lock();
  }
}

// Moves or gives up what nobody uses. REQUIRES: the segment is closing, or has been closed since.
void ExpertCache::vacate(int64_t segment) noexcept {
  const int64_t first = segment * arena_.slots_per_segment();
  for (int64_t i = 0; i < arena_.num_slots_in(segment); ++i) {
    const auto which = static_cast<int32_t>(first + i);
    if (slots_[static_cast<size_t>(which)].state == SlotState::kReady) move_out(which);
  }
}

// To a slot that takes no new memory: there may be none left to take.
void ExpertCache::move_out(int32_t which) noexcept {
  if (free_.empty() || !touched_[static_cast<size_t>(free_.back())]) {
    forget(which);
    return;
  }
  const int32_t target = take_free();
  std::memcpy(arena_.slot(target), arena_.slot(which), static_cast<size_t>(full_.slot_bytes));
  Slot& from = slots_[static_cast<size_t>(which)];
  Slot& to = slots_[static_cast<size_t>(target)];
  set_state(to, SlotState::kReady);
  to = from;
  slot_of_[index(to.key)] = target;
  empty_slot(which);
}

// REQUIRES: an empty slot of a closing segment, in no list.
void ExpertCache::retire(int32_t which) noexcept {
  set_state(slots_[static_cast<size_t>(which)], SlotState::kRetired);
  Segment& segment = segment_of(which);
  const int64_t at = arena_.segment_of(which);
  if (++segment.num_retired < arena_.num_slots_in(at)) return;
  segment.state = SegmentState::kClosed;
  arena_.give_back(at);
  const auto first = static_cast<size_t>(at * arena_.slots_per_segment());
  for (size_t i = first; i < first + static_cast<size_t>(arena_.num_slots_in(at)); ++i) {
    num_touched_ -= touched_[i];
    touched_[i] = false;
  }
}

// First those that are still closing: they need no new memory. The last one comes back last.
void ExpertCache::open_segments(int64_t count) {
  num_open_ += count;
  const auto last = static_cast<int64_t>(segments_.size()) - 1;
  for (const SegmentState state : {SegmentState::kClosing, SegmentState::kClosed}) {
    for (int64_t i = 0; i < last && count > 0; ++i) {
      if (segments_[static_cast<size_t>(i)].state != state) continue;
      open_segment(i);
      --count;
    }
  }
  if (count > 0) open_segment(last);
}

// Its free slots are touched all or, once given back, not at all.
void ExpertCache::open_segment(int64_t at) {
  Segment& segment = segments_[static_cast<size_t>(at)];
  segment = {};
  const int64_t first = at * arena_.slots_per_segment();
  std::vector<int32_t> untouched;
  for (int64_t i = arena_.num_slots_in(at); i-- > 0;) {
    const auto which = static_cast<int32_t>(first + i);
    Slot& slot = slots_[static_cast<size_t>(which)];
    if (slot.state != SlotState::kRetired) continue;
    set_state(slot, SlotState::kEmpty);
    if (touched_[static_cast<size_t>(which)]) {
      free_.push_back(which);
    } else {
      untouched.push_back(which);
    }
  }
  free_.insert(free_.begin(), untouched.begin(), untouched.end());
}

}  // namespace sparseflow
