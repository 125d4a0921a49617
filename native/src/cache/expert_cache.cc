#include "sparseflow/expert_cache.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <ctime>
#include <limits>
#include <stdexcept>
#include <utility>

#include "io/read_error.h"
#include "sparseflow/errors.h"

namespace sparseflow {
namespace {

double now_seconds() noexcept {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double process_cpu_seconds() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Books its own life as waiting for reads.
class Waiting {
 public:
  explicit Waiting(ExpertCounters& counters) noexcept : counters_(counters) {}
  ~Waiting() {
    counters_.read_wait_seconds += now_seconds() - wall_;
    counters_.wait_cpu_seconds += process_cpu_seconds() - cpu_;
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  ExpertCounters& counters_;
  double wall_ = now_seconds();
  double cpu_ = process_cpu_seconds();
};

[[maybe_unused]] bool may_change(SlotState from, SlotState to) noexcept {
  using enum SlotState;
  switch (from) {
    case kEmpty:
      return to == kReserved || to == kAhead || to == kReady || to == kRetired;
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
    case kAhead:
      return to == kLoading || to == kReady || to == kSpare || to == kEmpty;
    case kSpare:
      return to == kLeased || to == kEmpty;
    case kRetired:
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
      full_(std::move(layout)),
      layout_(full_),
      arena_(layout_.num_slots, layout_.slot_bytes),
      policy_(std::move(policy)),
      slots_(static_cast<size_t>(layout_.num_slots)),
      slot_of_(files.headers.size() * static_cast<size_t>(geometry_.num_experts), -1),
      num_admitted_(layout_.layer_capacity.size(), 0),
      step_(files.headers.size()),
      num_coming_(layout_.layer_capacity.size(), 0),
      expected_(static_cast<size_t>(geometry_.num_experts), false),
      layer_reads_(files.headers.size(), 0) {
  segments_.resize(static_cast<size_t>(arena_.num_segments()));
  touched_.assign(slots_.size(), false);
  num_open_ = arena_.num_segments();
  least_slots_ = layout_.num_slots;
  free_.reserve(slots_.size());
  for (auto slot = static_cast<int32_t>(slots_.size()); slot-- > 0;) free_.push_back(slot);
}

ExpertCache::~ExpertCache() {
  std::unique_lock lock(mutex_);
  assert(active_leases_ == 0);
  background_.clear();
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
  std::vector<int32_t>& step = step_[static_cast<size_t>(layer)];
  step.assign(experts.begin(), experts.end());
  std::sort(step.begin(), step.end());
  if (layer != ahead_layer_ || is_ahead_of_prompt_) return;
  // The guess has been answered.
  drop_spares(layer, step);
  std::erase_if(background_, [](const Background& b) { return b.errand == Errand::kGuess; });
  ahead_layer_ = -1;
}

void ExpertCache::expect(int32_t layer, std::span<const int32_t> experts) {
  const std::lock_guard lock(mutex_);
  expected_layer_ = layer;
  expected_.assign(expected_.size(), false);
  for (const int32_t expert : experts) expected_[static_cast<size_t>(expert)] = true;
  if (layer != ahead_layer_ || !is_ahead_of_prompt_) return;
  drop_spares(layer, expected_experts());
  std::erase_if(background_, [](const Background& b) { return b.errand == Errand::kPrompt; });
  ahead_layer_ = -1;
}

std::vector<int32_t> ExpertCache::expected_experts() const {
  std::vector<int32_t> experts;
  for (size_t expert = 0; expert < expected_.size(); ++expert) {
    if (expected_[expert]) experts.push_back(static_cast<int32_t>(expert));
  }
  return experts;
}

int64_t ExpertCache::count_misses(int32_t layer, std::span<const int32_t> experts) const noexcept {
  return std::count_if(experts.begin(), experts.end(),
                       [&](int32_t expert) { return slot_of_[index({layer, expert})] < 0; });
}

ExpertLease ExpertCache::acquire(int32_t layer, std::span<const int32_t> experts, bool wait) {
  const auto count = static_cast<int64_t>(experts.size());
  if (count > full_.max_lease) {
    throw BudgetError("a lease of " + std::to_string(count) +
                          " experts: this cache holds at most " + std::to_string(full_.max_lease) +
                          " at a time",
                      count * full_.slot_bytes, full_.max_lease * full_.slot_bytes);
  }
  std::unique_lock lock(mutex_);
  const std::span<const int32_t> wanted = experts;
  const auto has_room = [&] {
    experts = wanted.first(static_cast<size_t>(std::min(count, layout_.max_lease)));
    return make_room(layer, experts, wait);
  };
  if (!has_room()) {
    if (!wait) return {};
    const Waiting waiting(counters_);
    changed_.wait(lock, has_room);
  }
  std::vector<LeasedExpert> leased;
  if (!emptied_.empty()) {
    leased = std::move(emptied_.back());
    emptied_.pop_back();
  }
  leased.reserve(experts.size());
  emptied_.reserve(emptied_.size() + static_cast<size_t>(active_leases_) +
                   1);  // so that release cannot fail
  for (const int32_t expert : experts) {
    const int32_t slot = lease_one({layer, expert});
    const bool is_ready = slots_[static_cast<size_t>(slot)].state == SlotState::kLeased;
    leased.push_back({expert, slot, arena_.slot(slot), is_ready});
  }
  ++active_leases_;
  submit_all(lock);
  return {this, layer, std::move(leased)};
}

// Whether all of experts can have slots now; for who must have them, spares give way.
bool ExpertCache::make_room(int32_t layer, std::span<const int32_t> experts, bool must) {
  const int64_t misses = count_misses(layer, experts);
  const int64_t lacking = misses - static_cast<int64_t>(free_.size());
  if (must && lacking > 0) drop_spares(layer, experts, lacking);
  return misses <= static_cast<int64_t>(free_.size());
}

// Takes the expert's slot, or a free one and notes that it must be read.
int32_t ExpertCache::lease_one(ExpertKey key) {
  if (key.layer == expected_layer_) expected_[static_cast<size_t>(key.expert)] = false;
  const int32_t cached = slot_of_[index(key)];
  if (cached >= 0) return lease_cached(cached);
  const int32_t found = take_free();
  reserved_.push_back(found);
  slot_of_[index(key)] = found;
  Slot& slot = slots_[static_cast<size_t>(found)];
  set_state(slot, SlotState::kReserved);
  slot.key = key;
  slot.num_leases = 1;
  ++counters_.misses;
  return found;
}

int32_t ExpertCache::take_free() noexcept {
  const int32_t taken = free_.back();
  free_.pop_back();
  if (!touched_[static_cast<size_t>(taken)]) ++num_touched_;
  touched_[static_cast<size_t>(taken)] = true;
  return taken;
}

int32_t ExpertCache::lease_cached(int32_t which) {
  Slot& slot = slots_[static_cast<size_t>(which)];
  switch (slot.state) {
    case SlotState::kReady:
      set_state(slot, SlotState::kLeased);
      if (slot.errand == Errand::kPrompt) ++counters_.ahead_hits;
      break;
    case SlotState::kOrphaned:
      set_state(slot, SlotState::kLoading);
      break;
    case SlotState::kAhead:
      set_state(slot, SlotState::kLoading);
      --num_ahead_;
      if (slot.errand != Errand::kGuess) --num_coming_[share(slot.key.layer)];
      ++(slot.errand == Errand::kHeat ? counters_.preloaded : counters_.ahead_hits);
      break;
    case SlotState::kSpare:
      set_state(slot, SlotState::kLeased);
      std::erase(spares_, which);
      ++counters_.ahead_hits;
      break;
    default:
      break;
  }
  slot.errand = Errand::kNone;
  ++slot.num_leases;
  ++counters_.hits;
  return which;
}

void ExpertCache::preload() {
  std::unique_lock lock(mutex_);
  std::vector<std::pair<double, ExpertKey>> ranking;
  for (size_t i = 0; i < slot_of_.size(); ++i) {
    const auto num_experts = static_cast<size_t>(geometry_.num_experts);
    const ExpertKey key{static_cast<int32_t>(i / num_experts),
                        static_cast<int32_t>(i % num_experts)};
    const double score = policy_->score(key);
    if (score > 0.0 && slot_of_[i] < 0) ranking.emplace_back(score, key);
  }
  std::stable_sort(ranking.begin(), ranking.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::erase_if(background_, [](const Background& b) { return b.errand == Errand::kHeat; });
  for (const auto& [score, key] : ranking) background_.push_back({key, Errand::kHeat});
  submit_all(lock);
}

void ExpertCache::read_ahead(int32_t layer, std::span<const int32_t> experts) {
  std::unique_lock lock(mutex_);
  std::erase_if(background_, [](const Background& b) { return b.errand == Errand::kGuess; });
  if (layer != ahead_layer_) drop_spares(ahead_layer_, {});
  ahead_layer_ = layer;
  is_ahead_of_prompt_ = false;
  for (auto expert = experts.rbegin(); expert != experts.rend(); ++expert) {
    background_.push_front({{layer, *expert}, Errand::kGuess});
  }
  submit_all(lock);
}

bool ExpertCache::has_room() const {
  const std::lock_guard lock(mutex_);
  return layout_.is_split_by_layer && has_loose_slots();
}

// Slots that no lease needs, nor the layer that computes to fill its share: other layers have not
// filled theirs yet.
bool ExpertCache::has_loose_slots() const noexcept {
  const int64_t wanted = expected_layer_ >= 0 ? std::max<int64_t>(0, room_of(expected_layer_)) : 0;
  return static_cast<int64_t>(free_.size()) > layout_.num_transient + wanted;
}

void ExpertCache::prefetch(int32_t layer, std::span<const int32_t> experts) {
  std::unique_lock lock(mutex_);
  std::erase_if(background_, [](const Background& b) { return b.errand == Errand::kPrompt; });
  if (!layout_.is_split_by_layer) return;
  // Spares of the layer that computes stay; those of a guess that nobody answered go.
  if (ahead_layer_ >= 0 && layer != ahead_layer_) drop_spares(ahead_layer_, {});
  ahead_layer_ = layer;
  is_ahead_of_prompt_ = true;
  for (auto expert = experts.rbegin(); expert != experts.rend(); ++expert) {
    background_.push_front({{layer, *expert}, Errand::kPrompt});
  }
  submit_all(lock);
}

// Submits what may be submitted. An engine may end a read inside submit, so the lock is not held
// there.
void ExpertCache::submit_all(std::unique_lock<std::mutex>& lock) {
  ReadRequest request;
  while (take_next(&request)) {
    lock.unlock();
    engine_.submit(request);
    lock.lock();
  }
}

// The next read that may begin: those that leases wait for first.
bool ExpertCache::take_next(ReadRequest* request) {
  int32_t taken = take_reserved();
  if (taken < 0) taken = take_background();
  if (taken < 0) return false;
  const Slot& slot = slots_[static_cast<size_t>(taken)];
  count_in_flight(1);
  *request = {file_ids_[static_cast<size_t>(slot.key.layer)],
              geometry_.header_bytes + slot.key.expert * geometry_.blob_bytes,
              geometry_.blob_bytes,
              arena_.slot(taken),
              this,
              static_cast<uint64_t>(taken)};
  return true;
}

int32_t ExpertCache::take_reserved() {
  if (reserved_.empty() || num_in_flight_ >= layout_.queue_depth) return -1;
  const int32_t taken = reserved_.front();
  reserved_.pop_front();
  set_state(slots_[static_cast<size_t>(taken)], SlotState::kLoading);
  return taken;
}

// Takes half of the queue at most, and nothing while a lease waits for a read: what a layer needs
// now never queues behind many guesses.
int32_t ExpertCache::take_background() {
  const int64_t most = std::max<int64_t>(1, layout_.queue_depth / 2);
  while (!background_.empty() && !free_.empty()) {
    if (num_in_flight_ > num_ahead_ || num_ahead_ >= most) return -1;
    const auto [key, errand] = background_.front();
    const bool is_kept = errand != Errand::kGuess && room_of(key.layer) > 0;
    if (errand == Errand::kPrompt && !has_loose_slots()) return -1;
    background_.pop_front();
    if (slot_of_[index(key)] >= 0 || (errand == Errand::kHeat && !is_kept)) continue;
    const int32_t taken = take_free();
    slot_of_[index(key)] = taken;
    Slot& slot = slots_[static_cast<size_t>(taken)];
    set_state(slot, SlotState::kAhead);
    slot.key = key;
    slot.errand = is_kept ? errand : Errand::kGuess;
    ++num_ahead_;
    if (is_kept) ++num_coming_[share(key.layer)];
    counters_.ahead_reads += errand == Errand::kHeat ? 0 : 1;
    return taken;
  }
  return -1;
}

int64_t ExpertCache::room_of(int32_t layer) const noexcept {
  const size_t at = share(layer);
  return layout_.layer_capacity[at] - num_admitted_[at] - num_coming_[at];
}

void ExpertCache::count_in_flight(int change) noexcept {
  const double now = now_seconds();
  if (num_in_flight_ > 0) {
    counters_.read_busy_seconds += now - flight_since_;
    counters_.read_flight_seconds += (now - flight_since_) * static_cast<double>(num_in_flight_);
  }
  flight_since_ = now;
  num_in_flight_ += change;
}

void ExpertCache::read_done(const ReadRequest& request, const ReadResult& result) noexcept {
  Slot& slot = slots_[request.tag];
  std::unique_lock lock(mutex_);
  const SfiHeader& header = files_.headers[static_cast<size_t>(slot.key.layer)];
  const char* damage = nullptr;
  bool is_checked = result.error_number != 0;
  // An orphan's bytes are not worth checking, unless it is acquired again meanwhile.
  while (slot.state != SlotState::kOrphaned && !is_checked) {
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
  count_in_flight(-1);
  end_read(static_cast<int32_t>(request.tag), result, damage);
  // One read ended, so more may begin. After the lock is let go the cache may die as soon as
  // nothing is in flight.
  ReadEngine& engine = engine_;
  ReadRequest next[kMaxSubmit];
  int num_next = 0;
  while (num_next < kMaxSubmit && take_next(&next[num_next])) ++num_next;
  changed_.notify_all();
  lock.unlock();
  for (int i = 0; i < num_next; ++i) engine.submit(next[i]);
}

void ExpertCache::end_read(int32_t which, const ReadResult& result, const char* damage) noexcept {
  Slot& slot = slots_[static_cast<size_t>(which)];
  const bool failed = result.error_number != 0 || damage != nullptr;
  if (slot.state == SlotState::kAhead) {
    end_background(which, failed);
  } else if (slot.state == SlotState::kOrphaned) {
    slot_of_[index(slot.key)] = -1;
    empty_slot(which);
  } else if (failed) {
    slot_of_[index(slot.key)] = -1;
    slot.error_number = result.error_number;
    slot.error_offset = result.error_offset;
    slot.damage = damage;
    set_state(slot, SlotState::kFailed);
  } else {
    set_state(slot, SlotState::kLeased);
  }
}

void ExpertCache::end_background(int32_t which, bool failed) noexcept {
  Slot& slot = slots_[static_cast<size_t>(which)];
  const size_t at = share(slot.key.layer);
  const bool is_guess = slot.errand == Errand::kGuess;
  --num_ahead_;
  if (!is_guess) --num_coming_[at];
  failed = failed || is_closing(which);
  if (!failed && !is_guess && room_of(slot.key.layer) > 0) {
    slot.is_admitted = true;
    ++num_admitted_[at];
    counters_.preloaded += slot.errand == Errand::kHeat ? 1 : 0;
    set_state(slot, SlotState::kReady);
  } else if (!failed && is_guess && (slot.key.layer == ahead_layer_ || is_expected(slot.key))) {
    spares_.push_back(which);
    set_state(slot, SlotState::kSpare);
  } else {
    slot_of_[index(slot.key)] = -1;
    empty_slot(which);
  }
}

// Empties spares, the last first and at most `count`, but those of the layer that are among `keep`
// (ascending).
void ExpertCache::drop_spares(int32_t layer, std::span<const int32_t> keep,
                              int64_t count) noexcept {
  for (size_t i = spares_.size(); i-- > 0 && count > 0;) {
    const int32_t which = spares_[i];
    const ExpertKey key = slots_[static_cast<size_t>(which)].key;
    if (key.layer == layer && std::binary_search(keep.begin(), keep.end(), key.expert)) continue;
    spares_.erase(spares_.begin() + static_cast<std::ptrdiff_t>(i));
    slot_of_[index(key)] = -1;
    empty_slot(which);
    --count;
  }
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
  const Waiting waiting(counters_);
  changed_.wait(lock, [&] { return mark_delivered(experts); });
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
  std::unique_lock lock(mutex_);
  // First all returns, then admissions: what this lease held must count as evictable, or protected,
  // but not as leased.
  for (const LeasedExpert& leased : experts) unlease(leased.slot);
  for (const LeasedExpert& leased : experts) settle(leased.slot);
  experts.clear();
  emptied_.push_back(std::move(experts));
  --active_leases_;
  submit_all(lock);  // slots are free that a background read may have waited for
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

// What becomes of a slot that nobody leases any more.
void ExpertCache::settle(int32_t which) noexcept {
  const Slot& slot = slots_[static_cast<size_t>(which)];
  const bool is_new = slot.state == SlotState::kLeased && slot.num_leases == 0;
  if (!is_new && slot.state != SlotState::kReady) return;
  if (is_closing(which)) {
    forget(which);
  } else if (is_new) {
    admit(which);
  } else {
    // Shares may have been lowered while their experts were leased.
    const size_t at = share(slot.key.layer);
    while (slot.state == SlotState::kReady && num_admitted_[at] > layout_.layer_capacity[at]) {
      forget(find_victim(which));
    }
  }
}

// Gives up an expert that nobody leases.
void ExpertCache::forget(int32_t which) noexcept {
  const Slot& slot = slots_[static_cast<size_t>(which)];
  ++counters_.evictions;
  slot_of_[index(slot.key)] = -1;
  if (slot.is_admitted) --num_admitted_[share(slot.key.layer)];
  empty_slot(which);
}

// The expert of the smallest score goes, the new one among them: one of the current token gets in
// unless all others are leased, of the same token, or still to be used.
void ExpertCache::admit(int32_t which) noexcept {
  Slot& slot = slots_[static_cast<size_t>(which)];
  int64_t& admitted = num_admitted_[share(slot.key.layer)];
  if (admitted >= layout_.layer_capacity[share(slot.key.layer)]) {
    const int32_t victim = find_victim(which);
    forget(victim);
    if (victim == which) return;
  }
  slot.is_admitted = true;
  ++admitted;
  set_state(slot, SlotState::kReady);
}

bool ExpertCache::is_of_step(ExpertKey key) const noexcept {
  const std::vector<int32_t>& step = step_[static_cast<size_t>(key.layer)];
  return std::binary_search(step.begin(), step.end(), key.expert);
}

bool ExpertCache::is_expected(ExpertKey key) const noexcept {
  return key.layer == expected_layer_ && expected_[static_cast<size_t>(key.expert)];
}

bool ExpertCache::may_go(const Slot& slot) const noexcept {
  return slot.state == SlotState::kReady && !is_expected(slot.key);  // an empty slot has no key
}

// The newcomer itself if it is worth least, or if nothing else may go.
int32_t ExpertCache::find_victim(int32_t newcomer) const noexcept {
  const ExpertKey key = slots_[static_cast<size_t>(newcomer)].key;
  const int32_t layer = key.layer;
  const bool is_candidate = !is_of_step(key);
  int32_t victim = newcomer;
  double smallest = is_candidate ? policy_->score(key) : std::numeric_limits<double>::infinity();
  const auto consider = [&](int32_t which) {
    const Slot& slot = slots_[static_cast<size_t>(which)];
    if (!may_go(slot) || (slot.key.layer == layer && is_of_step(slot.key))) return;
    const double score = policy_->score(slot.key);
    const size_t held = index(slots_[static_cast<size_t>(victim)].key);
    if (score > smallest || (score == smallest && index(slot.key) > held)) return;
    victim = which;
    smallest = score;
  };
  if (layout_.is_split_by_layer) {
    for (int32_t expert = 0; expert < geometry_.num_experts; ++expert) {
      if (const int32_t which = slot_of_[index({layer, expert})]; which >= 0) consider(which);
    }
  } else {
    for (size_t which = 0; which < slots_.size(); ++which) consider(static_cast<int32_t>(which));
  }
  return victim;
}

void ExpertCache::empty_slot(int32_t which) noexcept {
  Slot& slot = slots_[static_cast<size_t>(which)];
  set_state(slot, SlotState::kEmpty);
  slot = Slot{};
  if (is_closing(which)) {
    retire(which);
  } else {
    free_.push_back(which);
  }
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
  if (num_in_flight_ > 0) {
    const double seconds = now_seconds() - flight_since_;
    result.read_busy_seconds += seconds;
    result.read_flight_seconds += seconds * static_cast<double>(num_in_flight_);
  }
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

CacheLayout ExpertCache::layout() const {
  const std::lock_guard lock(mutex_);
  return layout_;
}

int64_t ExpertCache::max_lease() const noexcept {
  const std::lock_guard lock(mutex_);
  return layout_.max_lease;
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
  int64_t num_ahead = 0;
  int64_t num_spare = 0;
  int64_t num_touched = 0;
  std::vector<int64_t> ready(num_admitted_.size(), 0);
  std::vector<int64_t> retired(segments_.size(), 0);
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    num_touched += touched_[i];
    num_empty += slot.state == SlotState::kEmpty;
    num_reserved += slot.state == SlotState::kReserved;
    num_ahead += slot.state == SlotState::kAhead;
    num_spare += slot.state == SlotState::kSpare;
    num_reading += slot.state == SlotState::kLoading || slot.state == SlotState::kOrphaned ||
                   slot.state == SlotState::kAhead;
    if (slot.state == SlotState::kEmpty) {
      require(slot.num_leases == 0 && !slot.is_admitted, "an empty slot is leased or admitted");
      require(!is_closing(static_cast<int32_t>(i)), "an empty slot of a closing segment");
      continue;
    }
    if (slot.state == SlotState::kRetired) {
      require(slot.num_leases == 0 && !slot.is_admitted, "a retired slot is leased or admitted");
      ++retired[static_cast<size_t>(arena_.segment_of(static_cast<int64_t>(i)))];
      continue;
    }
    const bool is_mapped = slot_of_[index(slot.key)] == static_cast<int32_t>(i);
    require(is_mapped == (slot.state != SlotState::kFailed), "a slot and its key disagree");
    const bool is_idle = slot.state == SlotState::kReady || slot.state == SlotState::kOrphaned ||
                         slot.state == SlotState::kAhead || slot.state == SlotState::kSpare;
    require(is_idle == (slot.num_leases == 0), "leases of a slot and its state disagree");
    require(slot.state != SlotState::kReady || slot.is_admitted, "a ready slot is not admitted");
    if (slot.is_admitted) ++admitted[share(slot.key.layer)];
    if (slot.state == SlotState::kReady) ++ready[share(slot.key.layer)];
  }
  require(num_empty == static_cast<int64_t>(free_.size()), "the free list is wrong");
  require(num_reserved == static_cast<int64_t>(reserved_.size()), "the list of reads is wrong");
  require(num_reading == num_in_flight_, "reads in flight are miscounted");
  require(num_ahead == num_ahead_, "background reads are miscounted");
  require(num_spare == static_cast<int64_t>(spares_.size()), "the list of spares is wrong");
  // A lower depth or a smaller share holds for what begins or comes back after it was set.
  require(num_in_flight_ <= full_.queue_depth, "more reads in flight than the queue depth");
  require(admitted == num_admitted_, "admitted experts are miscounted");
  require(num_touched == num_touched_, "touched slots are miscounted");
  for (size_t i = 0; i < admitted.size(); ++i) {
    require((counters_.shrinks > 0 ? ready : admitted)[i] <= layout_.layer_capacity[i],
            "a layer is over its capacity");
  }
  int64_t num_open = 0;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    const int64_t num_slots = arena_.num_slots_in(static_cast<int64_t>(i));
    num_open += segment.state == SegmentState::kOpen;
    require(retired[i] == segment.num_retired, "retired slots are miscounted");
    require(segment.state != SegmentState::kOpen || retired[i] == 0, "an open segment is retired");
    require((segment.state == SegmentState::kClosed) == (retired[i] == num_slots),
            "a segment is closed too early or too late");
  }
  require(num_open == num_open_, "open segments are miscounted");
}

}  // namespace sparseflow
