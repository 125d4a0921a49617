#include "sparseflow/expert_cache.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "io/read_error.h"
#include "sparseflow/errors.h"

namespace sparseflow {
namespace {

double now_seconds() noexcept {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[maybe_unused]] bool may_change(SlotState from, SlotState to) noexcept {
  using enum SlotState;
  switch (from) {
    case kEmpty:
      return to == kReserved;
    case kReserved:
      return to == kLoading || to == kEmpty;
    case kLoading:
      return to == kLeased || to == kFailed || to == kOrphaned;
    case kOrphaned:
      return to == kLoading || to == kEmpty;
    case kLeased:
      return to == kReady || to == kEmpty;
    case kReady:
      return to == kLeased || to == kEmpty;
    case kFailed:
      return to == kEmpty;
  }
  return false;
}

}  // namespace

ExpertCache::ExpertCache(const ExpertFiles& files, std::vector<int> file_ids, ReadEngine& engine,
                         std::unique_ptr<EvictionPolicy> policy, CacheLayout layout)
    : files_(files),
      geometry_(files.headers.front().geometry),
      file_ids_(std::move(file_ids)),
      engine_(engine),
      layout_(std::move(layout)),
      arena_(layout_.num_slots, layout_.slot_bytes),
      policy_(std::move(policy)),
      slots_(static_cast<size_t>(layout_.num_slots)),
      slot_of_(files.headers.size() * static_cast<size_t>(geometry_.num_experts), -1),
      num_admitted_(layout_.layer_capacity.size(), 0),
      step_(files.headers.size()),
      layer_reads_(files.headers.size(), 0) {
  free_.reserve(slots_.size());
  for (auto slot = static_cast<int32_t>(slots_.size()); slot-- > 0;) free_.push_back(slot);
}

ExpertCache::~ExpertCache() {
  std::unique_lock lock(mutex_);
  assert(active_leases_ == 0);
  changed_.wait(lock, [this] { return num_in_flight_ == 0; });
}

size_t ExpertCache::index(ExpertKey key) const noexcept {
  return static_cast<size_t>(key.layer) * static_cast<size_t>(geometry_.num_experts) +
         static_cast<size_t>(key.expert);
}

void ExpertCache::set_state(Slot& slot, SlotState to) noexcept {
  assert(may_change(slot.state, to));
  slot.state = to;
}

void ExpertCache::observe(int32_t layer, std::span<const int32_t> experts) {
  const std::lock_guard lock(mutex_);
  policy_->observe(layer, experts);
  step_[static_cast<size_t>(layer)].assign(experts.begin(), experts.end());
}

int64_t ExpertCache::count_misses(int32_t layer, std::span<const int32_t> experts) const noexcept {
  return std::count_if(experts.begin(), experts.end(),
                       [&](int32_t expert) { return slot_of_[index({layer, expert})] < 0; });
}

ExpertLease ExpertCache::acquire(int32_t layer, std::span<const int32_t> experts, bool wait) {
  const auto count = static_cast<int64_t>(experts.size());
  if (count > layout_.max_lease) {
    throw BudgetError("a lease of " + std::to_string(count) +
                          " experts: this cache holds at most " +
                          std::to_string(layout_.max_lease) + " at a time",
                      count * layout_.slot_bytes, layout_.max_lease * layout_.slot_bytes);
  }
  std::unique_lock lock(mutex_);
  const auto has_room = [&] {
    return count_misses(layer, experts) <= static_cast<int64_t>(free_.size());
  };
  if (!has_room()) {
    if (!wait) return {};
    const double start = now_seconds();
    changed_.wait(lock, has_room);
    counters_.read_wait_seconds += now_seconds() - start;
  }
  std::vector<LeasedExpert> leased;
  if (!spare_.empty()) {
    leased = std::move(spare_.back());
    spare_.pop_back();
  }
  leased.reserve(experts.size());
  spare_.reserve(spare_.size() + static_cast<size_t>(active_leases_) +
                 1);  // so that release cannot fail
  for (const int32_t expert : experts) {
    const int32_t slot = lease_one({layer, expert});
    const bool is_ready = slots_[static_cast<size_t>(slot)].state == SlotState::kLeased;
    leased.push_back({expert, slot, arena_.slot(slot), is_ready});
  }
  ++active_leases_;
  submit_reserved(lock);
  return {this, layer, std::move(leased)};
}

// Takes the expert's slot, or a free one and notes that it must be read.
int32_t ExpertCache::lease_one(ExpertKey key) {
  int32_t found = slot_of_[index(key)];
  if (found < 0) {
    found = free_.back();
    reserved_.push_back(found);
    free_.pop_back();
    slot_of_[index(key)] = found;
    Slot& slot = slots_[static_cast<size_t>(found)];
    set_state(slot, SlotState::kReserved);
    slot.key = key;
    slot.num_leases = 1;
    ++counters_.misses;
    return found;
  }
  Slot& slot = slots_[static_cast<size_t>(found)];
  if (slot.state == SlotState::kReady) set_state(slot, SlotState::kLeased);
  if (slot.state == SlotState::kOrphaned) set_state(slot, SlotState::kLoading);
  ++slot.num_leases;
  ++counters_.hits;
  return found;
}

// Submits reads up to the queue depth. An engine may end a read inside submit, so the lock is not
// held there.
void ExpertCache::submit_reserved(std::unique_lock<std::mutex>& lock) {
  ReadRequest request;
  while (take_reserved(&request)) {
    lock.unlock();
    engine_.submit(request);
    lock.lock();
  }
}

bool ExpertCache::take_reserved(ReadRequest* request) {
  if (reserved_.empty() || num_in_flight_ >= layout_.queue_depth) return false;
  const int32_t taken = reserved_.front();
  reserved_.pop_front();
  Slot& slot = slots_[static_cast<size_t>(taken)];
  set_state(slot, SlotState::kLoading);
  if (num_in_flight_++ == 0) busy_since_ = now_seconds();
  *request = {file_ids_[static_cast<size_t>(slot.key.layer)],
              geometry_.header_bytes + slot.key.expert * geometry_.blob_bytes,
              geometry_.blob_bytes,
              arena_.slot(taken),
              this,
              static_cast<uint64_t>(taken)};
  return true;
}

void ExpertCache::read_done(const ReadRequest& request, const ReadResult& result) noexcept {
  Slot& slot = slots_[request.tag];
  std::unique_lock lock(mutex_);
  const SfiHeader& header = files_.headers[static_cast<size_t>(slot.key.layer)];
  const char* damage = nullptr;
  bool is_checked = result.error_number != 0;
  // An orphan's bytes are not worth checking, unless it is acquired again meanwhile.
  while (slot.state == SlotState::kLoading && !is_checked) {
    lock.unlock();
    const uint64_t hash = header.blob_hashes[static_cast<size_t>(slot.key.expert)];
    damage = find_blob_error(geometry_, hash, static_cast<const std::byte*>(request.buffer));
    is_checked = true;
    lock.lock();
  }
  const bool failed = result.error_number != 0 || damage != nullptr;
  ++counters_.reads;
  ++layer_reads_[static_cast<size_t>(slot.key.layer)];
  counters_.failed_reads += failed ? 1 : 0;
  counters_.bytes_read += result.error_number != 0 ? 0 : request.nbytes;
  if (--num_in_flight_ == 0) counters_.read_busy_seconds += now_seconds() - busy_since_;
  if (slot.state == SlotState::kOrphaned) {
    slot_of_[index(slot.key)] = -1;
    empty_slot(static_cast<int32_t>(request.tag));
  } else if (failed) {
    slot_of_[index(slot.key)] = -1;
    slot.error_number = result.error_number;
    slot.error_offset = result.error_offset;
    slot.damage = damage;
    set_state(slot, SlotState::kFailed);
  } else {
    set_state(slot, SlotState::kLeased);
  }
  // One read ended, so one more may begin. After the lock is let go the cache may die as soon as
  // nothing is in flight.
  ReadEngine& engine = engine_;
  ReadRequest next;
  const bool has_next = take_reserved(&next);
  changed_.notify_all();
  lock.unlock();
  if (has_next) engine.submit(next);
}

bool ExpertCache::mark_delivered(std::span<LeasedExpert> experts) {
  bool any = false;
  for (LeasedExpert& leased : experts) {
    if (leased.is_delivered) continue;
    const Slot& slot = slots_[static_cast<size_t>(leased.slot)];
    if (slot.state == SlotState::kFailed) throw_failure(slot);
    if (slot.state == SlotState::kLeased) any = leased.is_delivered = true;
  }
  return any;
}

void ExpertCache::deliver(std::span<LeasedExpert> experts, bool wait) {
  std::unique_lock lock(mutex_);
  if (mark_delivered(experts) || !wait) return;
  const double start = now_seconds();
  const auto account = [&] { counters_.read_wait_seconds += now_seconds() - start; };
  try {
    changed_.wait(lock, [&] { return mark_delivered(experts); });
  } catch (...) {
    account();
    throw;
  }
  account();
}

void ExpertCache::throw_failure(const Slot& slot) const {
  const std::string& path = files_.paths[static_cast<size_t>(slot.key.layer)];
  const std::string what =
      "expert " + std::to_string(slot.key.expert) + " of layer " + std::to_string(slot.key.layer);
  if (slot.error_number != 0) {
    throw_storage_error("cannot read " + what + " from", path, slot.error_offset,
                        slot.error_number);
  }
  throw ContainerError(path + ": " + what + ": " + slot.damage +
                       "; check the container with verify, or prepare it again");
}

void ExpertCache::release(int32_t, std::vector<LeasedExpert>&& experts) noexcept {
  const std::lock_guard lock(mutex_);
  // First all returns, then admissions: what this lease held must count as evictable, or protected,
  // but not as leased.
  for (const LeasedExpert& leased : experts) unlease(leased.slot);
  for (const LeasedExpert& leased : experts) {
    const Slot& slot = slots_[static_cast<size_t>(leased.slot)];
    if (slot.state == SlotState::kLeased && slot.num_leases == 0) admit(leased.slot);
  }
  experts.clear();
  spare_.push_back(std::move(experts));
  --active_leases_;
  changed_.notify_all();
}

void ExpertCache::unlease(int32_t which) noexcept {
  Slot& slot = slots_[static_cast<size_t>(which)];
  if (--slot.num_leases > 0) return;
  switch (slot.state) {
    case SlotState::kReserved:
      reserved_.erase(std::find(reserved_.begin(), reserved_.end(), which));
      slot_of_[index(slot.key)] = -1;
      empty_slot(which);
      break;
    case SlotState::kLoading:
      set_state(slot, SlotState::kOrphaned);
      break;
    case SlotState::kFailed:
      empty_slot(which);
      break;
    case SlotState::kLeased:
      if (slot.is_admitted) set_state(slot, SlotState::kReady);
      break;
    default:
      assert(false);
  }
}

// A new expert always gets in, unless everything that could go is leased or of the same step.
void ExpertCache::admit(int32_t which) noexcept {
  Slot& slot = slots_[static_cast<size_t>(which)];
  int64_t& admitted = num_admitted_[share(slot.key.layer)];
  if (admitted >= layout_.layer_capacity[share(slot.key.layer)]) {
    const int32_t victim = find_victim(slot.key.layer);
    const int32_t loser = victim >= 0 ? victim : which;
    Slot& given_up = slots_[static_cast<size_t>(loser)];
    ++counters_.evictions;
    slot_of_[index(given_up.key)] = -1;
    if (given_up.is_admitted) --admitted;
    empty_slot(loser);
    if (victim < 0) return;
  }
  slot.is_admitted = true;
  ++admitted;
  set_state(slot, SlotState::kReady);
}

int32_t ExpertCache::find_victim(int32_t layer) const noexcept {
  const std::vector<int32_t>& step = step_[static_cast<size_t>(layer)];
  int32_t victim = -1;
  double smallest = 0;
  const auto consider = [&](int32_t which) {
    const Slot& slot = slots_[static_cast<size_t>(which)];
    if (slot.state != SlotState::kReady) return;
    if (slot.key.layer == layer && std::binary_search(step.begin(), step.end(), slot.key.expert)) {
      return;
    }
    const double score = policy_->score(slot.key);
    if (victim >= 0) {
      const size_t held = index(slots_[static_cast<size_t>(victim)].key);
      if (score > smallest || (score == smallest && index(slot.key) > held)) return;
    }
    victim = which;
    smallest = score;
  };
  if (layout_.is_split_by_layer) {
    for (int32_t expert = 0; expert < geometry_.num_experts; ++expert) {
      if (const int32_t which = slot_of_[index({layer, expert})]; which >= 0) consider(which);
    }
  } else {
    for (int32_t which = 0; which < layout_.num_slots; ++which) consider(which);
  }
  return victim;
}

void ExpertCache::empty_slot(int32_t which) noexcept {
  Slot& slot = slots_[static_cast<size_t>(which)];
  set_state(slot, SlotState::kEmpty);
  slot = Slot{};
  free_.push_back(which);
}

std::vector<float> ExpertCache::export_heat() const {
  const std::lock_guard lock(mutex_);
  return policy_->export_heat();
}

void ExpertCache::import_heat(std::span<const float> heat) {
  if (heat.size() != 2 * slot_of_.size()) {
    throw ConfigError("heat table of " + std::to_string(heat.size()) +
                      " values, this container has " + std::to_string(2 * slot_of_.size()));
  }
  const std::lock_guard lock(mutex_);
  policy_->import_heat(heat);
}

int64_t ExpertCache::active_leases() const noexcept {
  const std::lock_guard lock(mutex_);
  return active_leases_;
}

ExpertCounters ExpertCache::counters() const {
  const std::lock_guard lock(mutex_);
  ExpertCounters result = counters_;
  if (num_in_flight_ > 0) result.read_busy_seconds += now_seconds() - busy_since_;
  return result;
}

std::vector<int64_t> ExpertCache::layer_reads() const {
  const std::lock_guard lock(mutex_);
  return layer_reads_;
}

int64_t ExpertCache::cached_experts() const {
  const std::lock_guard lock(mutex_);
  int64_t total = 0;
  for (const int64_t admitted : num_admitted_) total += admitted;
  return total;
}

std::vector<int32_t> ExpertCache::cached_in(int32_t layer) const {
  const std::lock_guard lock(mutex_);
  std::vector<int32_t> experts;
  for (int32_t expert = 0; expert < geometry_.num_experts; ++expert) {
    const int32_t which = slot_of_[index({layer, expert})];
    if (which >= 0 && slots_[static_cast<size_t>(which)].is_admitted) experts.push_back(expert);
  }
  return experts;
}

void ExpertCache::check_invariants() const {
  const auto require = [](bool condition, const char* what) {
    if (!condition) throw std::logic_error(std::string("expert cache: ") + what);
  };
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> admitted(num_admitted_.size(), 0);
  int64_t num_empty = 0;
  int64_t num_reading = 0;
  int64_t num_reserved = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    num_empty += slot.state == SlotState::kEmpty;
    num_reserved += slot.state == SlotState::kReserved;
    num_reading += slot.state == SlotState::kLoading || slot.state == SlotState::kOrphaned;
    if (slot.state == SlotState::kEmpty) {
      require(slot.num_leases == 0 && !slot.is_admitted, "an empty slot is leased or admitted");
      continue;
    }
    const bool is_mapped = slot_of_[index(slot.key)] == static_cast<int32_t>(i);
    require(is_mapped == (slot.state != SlotState::kFailed), "a slot and its key disagree");
    const bool is_idle = slot.state == SlotState::kReady || slot.state == SlotState::kOrphaned;
    require(is_idle == (slot.num_leases == 0), "leases of a slot and its state disagree");
    require(slot.state != SlotState::kReady || slot.is_admitted, "a ready slot is not admitted");
    if (slot.is_admitted) ++admitted[share(slot.key.layer)];
  }
  require(num_empty == static_cast<int64_t>(free_.size()), "the free list is wrong");
  require(num_reserved == static_cast<int64_t>(reserved_.size()), "the list of reads is wrong");
  require(num_reading == num_in_flight_, "reads in flight are miscounted");
  require(num_in_flight_ <= layout_.queue_depth, "more reads in flight than the queue depth");
  require(admitted == num_admitted_, "admitted experts are miscounted");
  for (size_t i = 0; i < admitted.size(); ++i) {
    require(admitted[i] <= layout_.layer_capacity[i], "a layer is over its capacity");
  }
}

}  // namespace sparseflow
