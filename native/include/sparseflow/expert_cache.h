// A bounded cache of experts, filled from storage on a miss. The bound is hard: reads in flight
// count. docs/expert_cache.md draws the states of a slot; these are all the transitions:
//
//   EMPTY    -> RESERVED  acquired, and in no slot
//   RESERVED -> LOADING   its read is submitted
//   RESERVED -> EMPTY     its last lease died before that
//   LOADING  -> LEASED    the read ended well, bytes checked
//   LOADING  -> FAILED    the read ended badly; the key is forgotten at once
//   LOADING  -> ORPHANED  its last lease died
//   ORPHANED -> LOADING   acquired again
//   ORPHANED -> EMPTY     the read ended, well or not
//   LEASED   -> READY     its last lease died, and it is kept (admitted)
//   LEASED   -> EMPTY     its last lease died, and it is not kept
//   READY    -> LEASED    acquired
//   READY    -> EMPTY     evicted
//   FAILED   -> EMPTY     its last lease died
//   EMPTY    -> AHEAD     a background read is submitted: nobody has asked yet
//   AHEAD    -> LOADING   acquired meanwhile
//   AHEAD    -> READY     to be kept: the read ended well, and there is room among the kept
//   AHEAD    -> SPARE     looked ahead: the read ended well, and its layer is still to come
//   AHEAD    -> EMPTY     the read ended otherwise
//   SPARE    -> LEASED    acquired
//   SPARE    -> EMPTY     its layer chose others, or a lease must have the slot
//   EMPTY    -> RETIRED   its segment is being given back
//   RETIRED  -> EMPTY     its segment is used again
//   EMPTY    -> READY     an expert moved in from a segment that is being given back
//
// So: a slot with a read in flight (LOADING, ORPHANED, AHEAD) is never freed before the read has
// ended; a failed read is never cached, and the next acquire reads again; a leased slot is never
// evicted. Background reads begin only while no lease waits for a read.
//
// Slots are shared out by count: each layer keeps up to layer_capacity experts, the rest are
// transient (the misses of leases live there until they are admitted). Admission is a change of
// ownership; no bytes move. Below num_experts_per_tok slots a layer, one pool serves all layers.
//
// resize() changes the capacity while the cache is in use, by whole segments of the arena. A
// segment that is to go is closing until its last slot is RETIRED, then its memory is given back:
// at once where nothing is leased or being read, else when the last of those leases and reads has
// ended. Whatever is leased or read meanwhile stays where it is.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "sparseflow/eviction_policy.h"
#include "sparseflow/expert_source.h"
#include "sparseflow/read_engine.h"

namespace sparseflow {

enum class SlotState : uint8_t {
  kEmpty,
  kReserved,
  kLoading,
  kOrphaned,
  kReady,
  kLeased,
  kFailed,
  kAhead,
  kSpare,
  kRetired
};

// Why a slot is read in the background: earlier runs chose its expert often, the next step may, or
// a prompt will. For the first and the last it is kept if there is room.
enum class Errand : uint8_t { kNone, kHeat, kGuess, kPrompt };

// How a capacity is shared out; a pure function of its arguments, so that a plan can print it.
struct CacheLayout {
  int64_t slot_bytes;
  int64_t num_slots;
  int64_t num_transient;                // 0 where every expert has a slot
  int64_t max_lease;                    // experts of one lease
  int64_t queue_depth;                  // reads submitted at once
  bool is_split_by_layer;               // false: one pool
  std::vector<int64_t> layer_capacity;  // [num_layers], or [1] for one pool

  int64_t arena_bytes() const noexcept { return slot_bytes * num_slots; }
};

struct CacheRequest {
  int64_t capacity_bytes;
  int64_t num_layers;
  int64_t num_experts;
  int64_t num_experts_per_tok;
  int64_t blob_bytes;
  int64_t queue_depth;
};

// The layout that keeps `kept` experts, split by layer, whatever request.capacity_bytes says.
// REQUIRES: kept is at least num_experts_per_tok a layer.
CacheLayout split_by_layer(const CacheRequest& request, int64_t kept);

constexpr int64_t kMinSlots = 2;  // one expert computes while one is read

// Throws BudgetError with the sum if not even kMinSlots fit.
CacheLayout plan_cache(const CacheRequest& request);

// Slots in segments of about 64 MiB, or a sixteenth of the arena if that is less, 2 MiB aligned.
// All segments have the same number of slots, but for the last. Pages are taken when first written.
// Does not know what slots hold.
class Arena {
 public:
  static constexpr int64_t kSegmentBytes = int64_t{64} << 20;
  static constexpr int64_t kFewestSegments = 16;
  static constexpr int64_t kHugePage = int64_t{2} << 20;

  Arena(int64_t num_slots, int64_t slot_bytes);  // throws BudgetError if the system refuses
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* slot(int64_t i) const noexcept {
    return segments_[static_cast<size_t>(i / slots_per_segment_)] +
           i % slots_per_segment_ * slot_bytes_;
  }
  int64_t num_slots() const noexcept { return num_slots_; }
  int64_t num_segments() const noexcept { return static_cast<int64_t>(segments_.size()); }
  int64_t slots_per_segment() const noexcept { return slots_per_segment_; }
  int64_t segment_of(int64_t slot) const noexcept { return slot / slots_per_segment_; }
  int64_t num_slots_in(int64_t segment) const noexcept {
    return std::min(slots_per_segment_, num_slots_ - segment * slots_per_segment_);
  }

  // Gives a segment's pages back to the system; what its slots held is lost. They may be written
  // again at any time, which takes pages anew.
  void give_back(int64_t segment) noexcept;

 private:
  int64_t segment_bytes(size_t segment) const noexcept;

  int64_t num_slots_;
  int64_t slot_bytes_;
  int64_t slots_per_segment_;
  std::vector<std::byte*> segments_;
};

// Anonymous memory, 2 MiB aligned, huge pages where the host gives them. Throws BudgetError if the
// system refuses.
std::byte* map_aligned(int64_t nbytes);
void unmap_aligned(std::byte* memory, int64_t nbytes) noexcept;

// How much of an arena is in use, in bytes.
struct ArenaUse {
  int64_t full;           // what the cache was made with
  int64_t allowed;        // what may be used now
  int64_t held;           // not given back; more than allowed while leases and reads go on
  int64_t touched;        // of held: slots that were written to, so that they take memory
  int64_t least;          // the least that was ever allowed
  int64_t segment;        // resize goes by these
  int64_t open_segments;  // that may be used now
};

// Thread-safe.
class ExpertCache final : private LeaseOwner, private ReadSink {
 public:
  // file_ids: the engine's id of each layer's file. files, engine: outlive the cache.
  ExpertCache(const ExpertFiles& files, std::vector<int> file_ids, ReadEngine& engine,
              std::unique_ptr<EvictionPolicy> policy, CacheLayout layout);
  // Waits for reads in flight. REQUIRES: no leases.
  ~ExpertCache();

  CacheLayout layout() const;  // of the capacity that may be used now
  int64_t max_lease() const noexcept;

  // Allows the slots that fit request.capacity_bytes, by whole segments: at least the fewest that a
  // lease needs, at most what the cache was made with; returns how many bytes that is. The other
  // fields as they were for the layout that the cache was made with.
  //
  // Less: each layer keeps its experts of the best scores, moved out of the segments that go. These
  // are given back before this returns, but for those with leases or reads, which follow when the
  // last of them ends: nothing that is leased moves, and nobody is waited for. More: slots are free
  // again. From any thread, at any time.
  int64_t resize(CacheRequest request);
  ArenaUse arena_use() const;

  // One token's choice; its experts are protected from eviction until the layer's next one.
  void observe(int32_t layer, std::span<const int32_t> experts);

  // All experts that the layer is about to acquire, lease after lease: those that are kept are not
  // evicted before their turn. Replaces what was expected before.
  void expect(int32_t layer, std::span<const int32_t> experts);

  // Reads experts of the best scores into what each layer may keep, best first, in the background.
  // Evicts nothing; a read that fails is forgotten. Returns at once.
  void preload();

  // Advice: the next layer will probably choose these. They are read in the background and held
  // until that layer's next token shows whether it needs them.
  void read_ahead(int32_t layer, std::span<const int32_t> experts);

  // Whether experts could be read before their layer begins: there are slots that neither leases
  // nor the layer that computes will need.
  bool has_room() const;

  // Advice: a prompt will need these (ascending) of a layer that is still to come. They are read in
  // the background, in this order and as far as there is room, until the layer expects.
  void prefetch(int32_t layer, std::span<const int32_t> experts);

  // Leases all of experts (strictly ascending) or none. Equal reads in flight are shared. Sleeps
  // while other leases or orphaned reads hold the slots it needs; wait false: gives an empty lease
  // instead. Where resize has lowered max_lease() since the caller asked, the lease takes only so
  // many, from the first on; its size tells. Throws BudgetError for more experts than the layout
  // that the cache was made with leases: they can never fit.
  ExpertLease acquire(int32_t layer, std::span<const int32_t> experts, bool wait = true);

  // Every expert with its history: [num_layers, num_experts, 2].
  std::vector<float> export_heat() const;
  void import_heat(std::span<const float> heat);

  int64_t active_leases() const noexcept;
  ExpertCounters counters() const;
  std::vector<int64_t> layer_reads() const;             // [num_layers]
  int64_t cached_experts() const;                       // admitted
  std::vector<int32_t> cached_in(int32_t layer) const;  // ids of admitted experts, ascending

  // Throws std::logic_error naming the first broken invariant. For tests.
  void check_invariants() const;

 private:
  struct Slot {
    SlotState state = SlotState::kEmpty;
    bool is_admitted = false;
    Errand errand = Errand::kNone;  // of AHEAD; and of READY, until it is acquired
    int32_t num_leases = 0;
    ExpertKey key{-1, -1};
    // Why the read failed: error_number != 0 is storage, otherwise damage names what is wrong with
    // the bytes.
    int error_number = 0;
    int64_t error_offset = 0;
    const char* damage = nullptr;
  };

  struct Background {
    ExpertKey key;
    Errand errand;
  };
  static constexpr int kMaxSubmit = 4;  // requests that one finished read may start

  enum class SegmentState : uint8_t { kOpen, kClosing, kClosed };
  struct Segment {
    SegmentState state = SegmentState::kOpen;
    int64_t num_retired = 0;  // slots
  };

  void deliver(std::span<LeasedExpert> experts, bool wait) override;
  void release(int32_t layer, std::vector<LeasedExpert>&& experts) noexcept override;
  void read_done(const ReadRequest& request, const ReadResult& result) noexcept override;

  size_t index(ExpertKey key) const noexcept;
  size_t share(int32_t layer) const noexcept {
    return layout_.is_split_by_layer ? static_cast<size_t>(layer) : 0;
  }
  void set_state(Slot& slot, SlotState to) noexcept;
  int64_t count_misses(int32_t layer, std::span<const int32_t> experts) const noexcept;
  bool make_room(int32_t layer, std::span<const int32_t> experts, bool must);
  int32_t lease_one(ExpertKey key);
  int32_t lease_cached(int32_t slot);
  bool mark_delivered(std::span<LeasedExpert> experts);
  [[noreturn]] void throw_failure(const Slot& slot) const;
  void unlease(int32_t slot) noexcept;
  void settle(int32_t slot) noexcept;
  void admit(int32_t slot) noexcept;
  void forget(int32_t slot) noexcept;
  int32_t take_free() noexcept;
  bool is_of_step(ExpertKey key) const noexcept;
  bool is_expected(ExpertKey key) const noexcept;
  bool may_go(const Slot& slot) const noexcept;
  int32_t find_victim(int32_t newcomer) const noexcept;
  void empty_slot(int32_t slot) noexcept;
  void drop_spares(int32_t layer, std::span<const int32_t> keep,
                   int64_t count = std::numeric_limits<int64_t>::max()) noexcept;
  void end_read(int32_t slot, const ReadResult& result, const char* damage) noexcept;
  void end_background(int32_t slot, bool failed) noexcept;
  void submit_all(std::unique_lock<std::mutex>& lock);
  bool take_next(ReadRequest* request);
  int32_t take_reserved();
  int32_t take_background();
  int64_t room_of(int32_t layer) const noexcept;
  bool has_loose_slots() const noexcept;
  std::vector<int32_t> expected_experts() const;
  void count_in_flight(int change) noexcept;

  Segment& segment_of(int32_t slot) noexcept {
    return segments_[static_cast<size_t>(arena_.segment_of(slot))];
  }
  bool is_closing(int32_t slot) const noexcept {
    return segments_[static_cast<size_t>(arena_.segment_of(slot))].state != SegmentState::kOpen;
  }
  void recount_shares();
  void trim_shares();
  void close_segments(int64_t count, std::unique_lock<std::mutex>& lock);
  std::vector<int64_t> choose_closing(int64_t count) const;
  void vacate(int64_t segment) noexcept;
  void move_out(int32_t slot) noexcept;
  void retire(int32_t slot) noexcept;
  void open_segments(int64_t count);
  void open_segment(int64_t segment);

  const ExpertFiles& files_;
  const SfiGeometry& geometry_;
  std::vector<int> file_ids_;
  ReadEngine& engine_;
  const CacheLayout full_;
  CacheLayout layout_;
  Arena arena_;

  std::mutex resize_mutex_;  // one resize at a time; locked before mutex_
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // a read ended, or slots were freed
  std::unique_ptr<EvictionPolicy> policy_;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_;  // of open segments; taken from the back, touched ones there
  std::vector<Segment> segments_;
  std::vector<bool> touched_;  // [slots]
  int64_t num_touched_ = 0;
  int64_t num_open_ = 0;  // segments
  int64_t least_slots_ = 0;
  std::deque<int32_t> reserved_;       // reads not yet submitted, in order
  std::vector<int32_t> slot_of_;       // [num_layers, num_experts], -1: in no slot
  std::vector<int64_t> num_admitted_;  // [shares]
  std::vector<std::vector<int32_t>>
      step_;  // [num_layers] the experts of the layer's last token, ascending
  std::vector<std::vector<LeasedExpert>>
      emptied_;  // emptied lists of dead leases, so that a step allocates nothing
  std::deque<Background> background_;  // what to read when nothing else is to be read
  std::vector<int64_t> num_coming_;    // [shares] AHEAD slots that are to be kept
  std::vector<int32_t> spares_;        // SPARE slots
  int32_t ahead_layer_ = -1;           // the layer that was guessed for and has not yet chosen
  bool is_ahead_of_prompt_ = false;    // the guess is for a prompt
  std::vector<bool> expected_;         // [num_experts] of expected_layer_, still to be acquired
  int32_t expected_layer_ = -1;
  int64_t num_in_flight_ = 0;
  int64_t num_ahead_ = 0;  // of them in state AHEAD
  int64_t active_leases_ = 0;
  double flight_since_ = 0;
  ExpertCounters counters_;
  std::vector<int64_t> layer_reads_;
};

}  // namespace sparseflow
