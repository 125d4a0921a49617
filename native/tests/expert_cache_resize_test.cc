// A capacity that changes while the cache is in use: memory leaves, the best experts stay, leases
// and reads are left alone.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include "check.h"
#include "io/fault_script.h"
#include "sfi_builder.h"
#include "sparseflow/errors.h"
#include "sparseflow/streaming_source.h"

using namespace sparseflow;
using namespace sparseflow::test;

namespace {

using Ids = std::vector<int32_t>;

constexpr int64_t kAll = 32;  // experts of two layers

// Two layers of 16 experts, 2 a token; 10 slots are transient wherever a layer has a share.
struct Setup {
  explicit Setup(int64_t num_slots, SfiShape of = {})
      : shape(of),
        paths((shape.num_layers = 2, shape.num_experts = 16, write_experts(directory, shape))),
        headers(open_expert_files(paths).headers),
        script(std::make_shared<FaultScript>()),
        blob_bytes(headers[0].geometry.blob_bytes) {
    StreamingOptions options;
    options.capacity_bytes = num_slots * blob_bytes;
    options.num_experts_per_tok = 2;
    source =
        std::make_unique<StreamingSource>(paths, options, create_fault_engine(script, {2, true}));
  }
  ExpertCache& cache() { return source->cache(); }
  ArenaUse use() { return cache().arena_use(); }
  int64_t resize(int64_t num_slots) {
    const int64_t allowed = source->resize(num_slots * blob_bytes + 1);
    cache().check_invariants();
    check(allowed == use().allowed, "what is allowed is returned");
    return allowed / blob_bytes;
  }
  ExpertLease lease(int32_t layer, const Ids& ids) {
    ExpertLease lease = cache().acquire(layer, ids);
    for (int i = 0; i < lease.size(); ++i) {
      while (!lease.is_delivered(i)) lease.wait_any();
    }
    check_bytes(layer, lease);
    return lease;
  }
  void step(int32_t layer, const Ids& ids) {
    cache().observe(layer, ids);
    for (size_t next = 0; next < ids.size();) {
      const auto most = static_cast<size_t>(source->max_lease());
      const size_t count = std::min(most, ids.size() - next);
      next += static_cast<size_t>(
          lease(layer, {ids.begin() + static_cast<std::ptrdiff_t>(next),
                        ids.begin() + static_cast<std::ptrdiff_t>(next + count)})
              .size());
    }
    cache().check_invariants();
  }
  void fill() {
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (int32_t i = 0; i < 16; i += 2) step(layer, {i, i + 1});
    }
  }
  void check_bytes(int32_t layer, const ExpertLease& lease) const {
    const SfiHeader& header = headers[static_cast<size_t>(layer)];
    for (int i = 0; i < lease.size(); ++i) {
      const uint64_t hash = header.blob_hashes[static_cast<size_t>(lease.expert(i))];
      check(find_blob_error(header.geometry, hash, lease.blob(i)) == nullptr,
            "a lease holds the expert it names");
    }
  }

  TemporaryDirectory directory;
  SfiShape shape;
  std::vector<std::string> paths;
  std::vector<SfiHeader> headers;
  std::shared_ptr<FaultScript> script;
  int64_t blob_bytes;
  std::unique_ptr<StreamingSource> source;
};

int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "RssAnon:" && status >> word) return std::stoll(word) * 1024;
  }
  throw Failure("this system does not tell RssAnon");
}

void a_smaller_capacity_gives_memory_back_at_once() {
  Setup setup(kAll - 1, {.hidden_size = 1024, .moe_intermediate_size = 320});
  setup.fill();
  const int64_t touched = setup.use().touched;
  check(touched >= 22 * setup.blob_bytes, "more than what is kept was written to");
  const int64_t before = anonymous_bytes();
  check(setup.resize(4) == 4, "4 slots");
  const int64_t left = before - anonymous_bytes();
  check(left > touched - 5 * setup.blob_bytes, "it left, in bytes: " + std::to_string(left));
  check(setup.use().held == 4 * setup.blob_bytes, "nothing is held beyond");
  check(setup.use().touched <= setup.use().held, "what left is not touched");
  setup.fill();
  check(anonymous_bytes() < before - touched + 5 * setup.blob_bytes, "and it stays away");
  check(setup.resize(kAll) == kAll - 1, "back to what it was made with");
  setup.fill();
  check(setup.use().touched >= touched, "all is used again");
}

void each_layer_keeps_its_best_experts_without_reading_them_again() {
  Setup setup(kAll - 1);
  setup.fill();
  for (int i = 0; i < 9; ++i) {
    setup.step(0, {3, 12});
    setup.step(0, {7, 8});
    setup.step(1, {0, 15});
    setup.step(1, {1, 2});
  }
  check(setup.resize(18) == 18, "10 transient and 4 a layer");
  check(setup.cache().cached_in(0) == Ids({3, 7, 8, 12}), "the best of layer 0");
  check(setup.cache().cached_in(1) == Ids({0, 1, 2, 15}), "the best of layer 1");
  const int64_t before = setup.source->counters().reads;
  setup.step(0, {7, 12});
  setup.step(0, {3, 8});
  setup.step(1, {1, 15});
  check(setup.source->counters().reads == before, "they moved, or stayed where they were");
}

void a_leased_expert_stays_until_it_is_given_back() {
  Setup setup(kAll);
  setup.fill();
  ExpertLease held = setup.lease(0, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  std::vector<const std::byte*> blobs;
  for (int i = 0; i < held.size(); ++i) blobs.push_back(held.blob(i));
  check(setup.resize(2) == 2, "two slots");
  check(setup.use().held > 2 * setup.blob_bytes, "the leased ones are still there");
  setup.check_bytes(0, held);
  for (int i = 0; i < held.size(); ++i)
    check(held.blob(i) == blobs[static_cast<size_t>(i)], "same");
  held = ExpertLease{};
  setup.cache().check_invariants();
  check(setup.use().held == 2 * setup.blob_bytes, "they left with their lease");
  check(setup.source->active_leases() == 0, "leases 0");
  setup.step(0, {4, 5});
}

void reads_under_way_hold_their_segment_but_not_the_caller() {
  Setup setup(kAll - 1);
  setup.script->delay(0, 50000);
  setup.script->delay(1, 50000);
  {
    ExpertLease lease = setup.cache().acquire(0, Ids{0, 1, 2, 3});
    check(setup.resize(2) == 2, "two slots");
    check(setup.source->counters().reads == 0, "nobody was waited for");
    check(setup.use().held > 2 * setup.blob_bytes, "slots that are read into are held");
  }
  setup.cache().check_invariants();  // orphans now
  setup.step(1, {0, 1});
  while (setup.use().held > setup.use().allowed) std::this_thread::yield();
  setup.cache().check_invariants();
}

void growing_brings_the_old_layout_back() {
  for (const int64_t num_slots : {kAll, kAll - 1, int64_t{20}, int64_t{9}, int64_t{3}}) {
    Setup setup(num_slots);
    const CacheLayout before = setup.cache().layout();
    setup.fill();
    const int64_t least = setup.resize(0);
    check(least == 2 && setup.use().least == 2 * setup.blob_bytes, "two slots are the least");
    setup.fill();
    check(setup.resize(2 * kAll) == num_slots, "as many as before");
    const CacheLayout after = setup.cache().layout();
    check(after.max_lease == before.max_lease && after.queue_depth == before.queue_depth, "leases");
    check(after.layer_capacity == before.layer_capacity, "shares");
    check(after.num_transient == before.num_transient, "transient slots");
    setup.fill();
    const ExpertCounters c = setup.source->counters();
    check(c.shrinks == 1 && c.grows == 1, "both are counted");
    check(setup.use().held == num_slots * setup.blob_bytes, "all segments are held");
  }
}

void a_lease_asked_for_before_takes_what_fits_now() {
  Setup setup(kAll);
  Ids all(16);
  std::iota(all.begin(), all.end(), 0);
  check(setup.source->max_lease() == 16, "a whole layer");
  setup.resize(16);
  const auto most = static_cast<int>(setup.source->max_lease());
  check(most < 16, "fewer now");
  {
    const ExpertLease lease = setup.lease(0, all);
    check(lease.size() == most && lease.expert(0) == 0, "the first ones");
  }
  setup.resize(2);
  check(setup.lease(0, all).size() == 1, "one at a time");
  setup.resize(kAll);
  check(setup.lease(0, all).size() == 16, "all again");
  all.push_back(16);
  check_throws<BudgetError>([&] { setup.cache().acquire(0, all); }, "at most 16");
}

void who_waits_for_room_is_served_whatever_happens_to_the_capacity() {
  for (const int64_t then : {2, 3, 12, 32}) {
    Setup setup(kAll);
    setup.resize(4);
    ExpertLease held = setup.cache().acquire(0, Ids{0});
    ExpertLease more;
    for (int32_t i = 1; i < 16; ++i) {
      more = setup.source->try_acquire(0, Ids{i});
      if (!more) break;
    }
    std::atomic<bool> is_served{false};
    std::thread waiter([&] {
      const ExpertLease lease = setup.lease(1, {3, 4});
      is_served = lease.size() >= 1;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    setup.resize(then);
    held = ExpertLease{};
    more = ExpertLease{};
    waiter.join();
    check(is_served, "it got its lease");
    setup.cache().check_invariants();
  }
}

void any_series_of_capacities_keeps_the_promises() {
  for (const int64_t num_slots : {kAll, kAll - 1, int64_t{17}, int64_t{5}}) {
    Setup setup(num_slots);
    std::mt19937 random(11);
    for (int round = 0; round < 400; ++round) {
      const auto slots = static_cast<int64_t>(random() % 40);
      const int64_t allowed = setup.resize(slots);
      check(allowed <= std::max<int64_t>(2, slots), "within what was asked for");
      check(setup.use().held == setup.use().allowed, "nothing is leased, so nothing is held back");
      check(setup.cache().layout().arena_bytes() == setup.use().allowed, "the layout says it");
      const auto a = static_cast<int32_t>(random() % 15);
      setup.step(static_cast<int32_t>(random() % 2), {a, a + 1});
    }
    check(setup.source->active_leases() == 0, "leases 0");
  }
}

}  // namespace

int main() {
  return run_facts({{"a smaller capacity gives memory back at once",
                     a_smaller_capacity_gives_memory_back_at_once},
                    {"each layer keeps its best experts without reading them again",
                     each_layer_keeps_its_best_experts_without_reading_them_again},
                    {"a leased expert stays until it is given back",
                     a_leased_expert_stays_until_it_is_given_back},
                    {"reads under way hold their segment but not the caller",
                     reads_under_way_hold_their_segment_but_not_the_caller},
                    {"growing brings the old layout back", growing_brings_the_old_layout_back},
                    {"a lease asked for before takes what fits now",
                     a_lease_asked_for_before_takes_what_fits_now},
                    {"who waits for room is served whatever happens to the capacity",
                     who_waits_for_room_is_served_whatever_happens_to_the_capacity},
                    {"any series of capacities keeps the promises",
                     any_series_of_capacities_keeps_the_promises}});
}
