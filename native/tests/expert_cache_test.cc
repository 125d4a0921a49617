// The cache's promises: a hard bound, leases that are never evicted, failed reads that are never
// cached.
#include "sparseflow/expert_cache.h"

#include <cerrno>
#include <numeric>
#include <thread>

#include "check.h"
#include "io/fault_script.h"
#include "sfi_builder.h"
#include "sparseflow/errors.h"
#include "sparseflow/resident_source.h"
#include "sparseflow/streaming_source.h"

using namespace sparseflow;
using namespace sparseflow::test;

namespace {

using Ids = std::vector<int32_t>;

struct Setup {
  explicit Setup(int64_t num_slots, const std::string& policy = "scored", int queue_depth = 2,
                 int64_t num_layers = 2)
      : shape{.num_layers = num_layers},
        paths(write_experts(directory, shape)),
        script(std::make_shared<FaultScript>()),
        blob_bytes(read_sfi_header(paths[0]).geometry.blob_bytes) {
    StreamingOptions options;
    options.capacity_bytes = num_slots * blob_bytes + 100;
    options.num_experts_per_tok = 2;
    options.policy = policy;
    source = std::make_unique<StreamingSource>(paths, options,
                                               create_fault_engine(script, {queue_depth, true}));
  }
  ExpertCache& cache() { return source->cache(); }

  void wait_all(ExpertLease& lease) {
    for (int i = 0; i < lease.size(); ++i) {
      while (!lease.is_delivered(i)) lease.wait_any();
    }
  }
  // One token: observe, acquire, wait, release.
  void step(int32_t layer, const Ids& ids) {
    cache().observe(layer, ids);
    ExpertLease lease = cache().acquire(layer, ids);
    wait_all(lease);
    for (int i = 0; i < lease.size(); ++i)
      check(is_right(layer, lease, i), "a lease holds the expert it names");
    cache().check_invariants();
  }
  bool is_right(int32_t layer, const ExpertLease& lease, int i) const {
    const SfiHeader header = read_sfi_header(paths[static_cast<size_t>(layer)]);
    return find_blob_error(header.geometry,
                           header.blob_hashes[static_cast<size_t>(lease.expert(i))],
                           lease.blob(i)) == nullptr;
  }

  TemporaryDirectory directory;
  SfiShape shape;
  std::vector<std::string> paths;
  std::shared_ptr<FaultScript> script;
  int64_t blob_bytes;
  std::unique_ptr<StreamingSource> source;
};

CacheRequest request(int64_t slots, int64_t layers = 4, int64_t experts = 16, int64_t k = 2,
                     int64_t depth = 4) {
  return {slots * 8192, layers, experts, k, 8192, depth};
}

void the_layout_never_exceeds_its_capacity() {
  for (int64_t slots = 2; slots <= 70; ++slots) {
    const CacheLayout layout = plan_cache(request(slots));
    check(layout.arena_bytes() <= slots * 8192, "within capacity");
    const int64_t kept =
        std::accumulate(layout.layer_capacity.begin(), layout.layer_capacity.end(), int64_t{0});
    check(kept + layout.num_transient <= layout.num_slots, "shares and transient slots fit");
    check(layout.max_lease >= 1 && layout.queue_depth >= 1, "something can be leased");
    const bool is_all = layout.num_slots == 64;
    check(is_all || layout.max_lease <= layout.num_transient, "a lease fits the transient slots");
    for (const int64_t share : layout.layer_capacity) {
      check(!layout.is_split_by_layer || (share >= 2 && share <= 16),
            "a layer's share holds a token's experts");
    }
  }
  check(!plan_cache(request(19)).is_split_by_layer, "small: one pool");
  check(plan_cache(request(20)).is_split_by_layer, "12 transient slots and 2 a layer");
  check(plan_cache(request(64)).num_transient == 0, "everything fits: nothing is transient");
}

void what_can_never_fit_is_refused_with_the_sum() {
  const auto error = check_throws<BudgetError>([] { plan_cache(request(1)); },
                                               "2 experts of 8192 bytes need 16384");
  check(error.needed_bytes == 16384 && error.available_bytes == 8192, "both counts");
  Setup setup(8);
  Ids all(static_cast<size_t>(setup.source->max_lease()) + 1);
  std::iota(all.begin(), all.end(), 0);
  check_throws<BudgetError>([&] { setup.cache().acquire(0, all); }, "at most");
  setup.cache().check_invariants();
}

void unknown_policies_are_refused_by_naming_the_known() {
  check_throws<ConfigError>([] { create_policy("belady", 1, 1); }, "known: scored, lru");
}

void a_hit_reads_nothing_and_a_miss_reads_once() {
  Setup setup(16);  // everything
  setup.step(0, {1, 3});
  setup.step(0, {1, 5});
  const ExpertCounters c = setup.source->counters();
  check(c.misses == 3 && c.hits == 1 && c.reads == 3 && c.evictions == 0, "3 misses, 1 hit");
  check(c.bytes_read == 3 * setup.blob_bytes && c.read_busy_seconds > 0,
        "bytes and time are counted");
  check(setup.cache().layer_reads() == std::vector<int64_t>({3, 0}), "reads are counted by layer");
  check(setup.cache().cached_in(0) == Ids({1, 3, 5}), "all are kept");
  check(setup.source->active_leases() == 0, "leases 0");
}

void the_bound_is_kept_by_eviction_and_the_step_is_protected() {
  for (const std::string& policy : policy_names()) {
    Setup setup(14, policy);  // 10 transient, 2 a layer
    check(setup.cache().layout().is_split_by_layer && setup.cache().layout().layer_capacity[0] == 2,
          "2 slots a layer");
    std::mt19937 random(5);
    for (int token = 0; token < 200; ++token) {
      for (int32_t layer = 0; layer < 2; ++layer) {
        const auto a = static_cast<int32_t>(random() % 7);
        const auto b = static_cast<int32_t>(
            a + 1 + static_cast<int32_t>(random() % static_cast<unsigned>(7 - a)));
        setup.step(layer, {a, b});
        check(setup.cache().cached_in(layer) == Ids({a, b}), "the step's experts are what is kept");
      }
    }
    check(setup.cache().cached_experts() == 4 && setup.source->counters().evictions > 0,
          policy + " evicts");
  }
}

void scored_keeps_what_is_chosen_often_and_lru_what_was_chosen_last() {
  for (const std::string& policy : policy_names()) {
    Setup setup(16 - 1, policy, 2, 2);  // 12 - transient 10 = 5 kept: 3 and 2
    check(setup.cache().layout().layer_capacity[0] == 3, "3 slots");
    for (int i = 0; i < 12; ++i) setup.step(0, {0, 1});
    setup.step(0, {2, 3});
    setup.step(0, {3, 4});
    const Ids cached = setup.cache().cached_in(0);
    check(cached.size() == 3 && cached[1] == 3 && cached[2] == 4, "the last step is kept");
    check(cached[0] == (policy == "lru" ? 2 : 1),
          policy + " keeps the right third, not " + std::to_string(cached[0]));
  }
}

void one_pool_still_works_below_a_tokens_experts() {
  for (int64_t slots : {2, 3, 4, 5, 6, 9}) {
    Setup setup(slots);
    check(!setup.cache().layout().is_split_by_layer, "one pool");
    for (int token = 0; token < 20; ++token) {
      for (int32_t layer = 0; layer < 2; ++layer) {
        const Ids ids = {token % 4, 4 + token % 3};
        if (setup.source->max_lease() >= 2) {
          setup.step(layer, ids);
        } else {
          setup.step(layer, {ids[0]});
          setup.step(layer, {ids[1]});
        }
      }
    }
    check(setup.source->counters().evictions > 0, "evictions");
  }
}

void a_leased_expert_is_never_evicted() {
  Setup setup(14);
  ExpertLease held = setup.cache().acquire(0, Ids{0, 1});
  setup.wait_all(held);
  for (int32_t i = 2; i < 7; ++i) setup.step(0, {i, i + 1});
  check(setup.is_right(0, held, 0) && setup.is_right(0, held, 1), "the held bytes are intact");
  held = ExpertLease{};
  setup.cache().check_invariants();
  check(setup.cache().cached_in(0).size() == 2, "within the share again");
}

void equal_reads_in_flight_are_merged() {
  Setup setup(16);
  setup.script->delay(0, 20000);
  ExpertLease a = setup.cache().acquire(0, Ids{4});
  ExpertLease b = setup.cache().acquire(0, Ids{4});
  setup.wait_all(a);
  setup.wait_all(b);
  check(a.blob(0) == b.blob(0) && setup.source->counters().reads == 1, "one read, one slot");
  check(setup.source->active_leases() == 2, "two leases");
}

void a_failed_read_is_not_cached_and_the_next_acquire_retries() {
  Setup setup(16);
  setup.script->fail(0, EIO);
  {
    ExpertLease lease = setup.cache().acquire(1, Ids{2});
    const auto error = check_throws<StorageError>([&] { setup.wait_all(lease); },
                                                  "cannot read expert 2 of layer 1");
    check(error.error_number == EIO && error.path == setup.paths[1] && error.offset > 0,
          "path, offset and errno");
    setup.cache().check_invariants();
    // While the failure is still held, a new lease reads afresh.
    ExpertLease retry = setup.cache().acquire(1, Ids{2});
    setup.wait_all(retry);
    check(setup.is_right(1, retry, 0), "the retry has the right bytes");
  }
  setup.cache().check_invariants();
  const ExpertCounters c = setup.source->counters();
  check(c.reads == 2 && c.failed_reads == 1 && setup.source->active_leases() == 0, "counted");
}

void damaged_bytes_are_found_and_not_cached() {
  Setup setup(16);
  setup.script->flip_bit(0);
  check_throws<ContainerError>([&] { setup.step(0, {6}); }, "expert 6 of layer 0: hash differs");
  check(setup.source->active_leases() == 0 && setup.cache().cached_experts() == 0,
        "nothing is kept");
  setup.step(0, {6});
}

void a_dying_lease_orphans_its_reads_until_they_end() {
  Setup setup(14, "scored", 1);
  setup.script->delay(0, 30000);
  {
    ExpertLease lease = setup.cache().acquire(0, Ids{0, 1, 2});
  }
  setup.cache().check_invariants();
  check(setup.source->active_leases() == 0, "leases 0 while a read is under way");
  // Only the read that had begun is carried out, and its expert is not kept.
  while (setup.source->counters().reads == 0) std::this_thread::yield();
  setup.cache().check_invariants();
  check(setup.source->counters().reads == 1 && setup.cache().cached_experts() == 0, "one read");
  setup.step(0, {0, 1});
  // An orphan that is wanted again is adopted: no second read.
  setup.script->delay(0, 30000);
  {
    ExpertLease lease = setup.cache().acquire(0, Ids{7});
  }
  setup.step(0, {7});
  check(setup.source->counters().reads == 4, "the orphan's read was used");
}

void acquire_waits_for_room_and_try_acquire_does_not() {
  Setup setup(2, "scored", 1);
  check(setup.source->max_lease() == 1, "one at a time");
  setup.step(0, {0});  // takes the slot that is not transient
  ExpertLease held = setup.source->acquire(0, Ids{1});
  check(!setup.source->try_acquire(0, Ids{2}), "no room: empty");
  std::thread releaser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    held = ExpertLease{};
  });
  ExpertLease next = setup.source->acquire(0, Ids{2});
  releaser.join();
  setup.wait_all(next);
  check(setup.is_right(0, next, 0), "it got the room of the first");
}

void heat_survives_export_and_import() {
  for (const std::string& policy : policy_names()) {
    auto a = create_policy(policy, 2, 8);
    std::mt19937 random(1);
    for (int i = 0; i < 100; ++i)
      a->observe(i % 2,
                 Ids{static_cast<int32_t>(random() % 4), static_cast<int32_t>(4 + random() % 4)});
    auto b = create_policy(policy, 2, 8);
    b->import_heat(a->export_heat());
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (int32_t e = 0; e < 8; ++e) {
        for (int32_t f = 0; f < 8; ++f) {
          const bool order_a = a->score({layer, e}) < a->score({layer, f});
          const bool order_b = b->score({layer, e}) < b->score({layer, f});
          check(order_a == order_b, policy + " ranks the same");
        }
      }
    }
    const std::vector<float> hostile(32, -NAN);
    b->import_heat(hostile);
    check(b->score({1, 3}) == 0.0, policy + " takes no nonsense");
  }
  Setup setup(16);
  check_throws<ConfigError>([&] { setup.cache().import_heat(std::vector<float>(3)); },
                            "heat table of 3");
}

// Heat that ranks the experts of each layer by `order`, the hottest first.
std::vector<float> heat_of(const Setup& setup, const Ids& order) {
  const auto num_experts = static_cast<size_t>(setup.shape.num_experts);
  std::vector<float> heat(2 * 2 * num_experts, 0.0f);
  for (size_t layer = 0; layer < 2; ++layer) {
    for (size_t rank = 0; rank < order.size(); ++rank) {
      const size_t expert = layer * num_experts + static_cast<size_t>(order[rank]);
      heat[2 * expert] = heat[2 * expert + 1] = static_cast<float>(order.size() - rank);
    }
  }
  return heat;
}

void wait_for_reads(Setup& setup, int64_t reads) {
  while (setup.source->counters().reads < reads) std::this_thread::yield();
  setup.cache().check_invariants();
}

void preload_fills_each_layers_share_by_falling_heat() {
  Setup setup(16 - 1, "scored", 2, 2);  // 3 and 2 are kept
  setup.cache().import_heat(heat_of(setup, {6, 2, 5, 1, 7}));
  setup.cache().preload();
  wait_for_reads(setup, 5);
  check(setup.cache().cached_in(0) == Ids({2, 5, 6}), "the three hottest of layer 0");
  check(setup.cache().cached_in(1) == Ids({2, 6}), "the two hottest of layer 1");
  setup.step(0, {2, 6});
  const ExpertCounters c = setup.source->counters();
  check(c.preloaded == 5 && c.reads == 5 && c.hits == 2 && c.misses == 0, "they are hits");
  check(c.evictions == 0, "nothing was evicted for them");
}

void preload_waits_while_a_lease_waits_for_a_read() {
  Setup setup(16 - 1, "scored", 2, 2);
  setup.cache().import_heat(heat_of(setup, {6, 2, 5}));
  setup.script->delay(0, 20000);
  ExpertLease lease = setup.cache().acquire(0, Ids{0});
  setup.cache().preload();
  check(setup.script->num_calls() <= 1, "the lease's read is alone");
  setup.wait_all(lease);
  wait_for_reads(setup, 6);
  lease = ExpertLease{};
  setup.cache().check_invariants();
  check(setup.source->counters().preloaded == 5, "then it goes on");
}

void a_preload_that_fails_is_forgotten_and_read_again_on_demand() {
  Setup setup(16 - 1, "scored", 1, 2);
  setup.cache().import_heat(heat_of(setup, {6}));
  setup.script->fail(0, EIO);
  setup.script->flip_bit(1);
  setup.cache().preload();
  wait_for_reads(setup, 2);
  check(setup.cache().cached_experts() == 0, "neither the failed nor the damaged one is kept");
  check(setup.source->counters().failed_reads == 2, "both are counted");
  setup.step(0, {6});
  setup.step(1, {6});
}

void a_preload_that_is_acquired_meanwhile_is_read_once() {
  Setup setup(16 - 1, "scored", 1, 2);
  setup.cache().import_heat(heat_of(setup, {6}));
  setup.script->delay(0, 20000);
  setup.cache().preload();
  setup.step(0, {6});
  wait_for_reads(setup, 2);
  check(setup.source->counters().misses == 0, "it was on its way");
  check(setup.cache().cached_in(0) == Ids({6}) && setup.cache().cached_in(1) == Ids({6}), "kept");
  check(setup.source->counters().preloaded == 2, "both count");
}

void a_cache_that_dies_cancels_its_preload() {
  auto setup = std::make_unique<Setup>(16, "scored", 1, 2);
  setup->cache().import_heat(heat_of(*setup, {0, 1, 2, 3, 4, 5, 6, 7}));
  const std::shared_ptr<FaultScript> script = setup->script;
  script->delay(0, 20000);
  setup->cache().preload();
  setup.reset();
  check(script->num_calls() <= 1, "only the read that had begun was carried out");
}

void what_was_read_ahead_is_a_hit_or_goes() {
  Setup setup(16 - 1, "scored", 2, 2);
  setup.cache().read_ahead(1, Ids{2, 3});
  wait_for_reads(setup, 2);
  check(setup.cache().cached_experts() == 0, "not kept before it is asked for");
  setup.step(1, {3, 4});
  ExpertCounters c = setup.source->counters();
  check(c.hits == 1 && c.misses == 1 && c.reads == 3, "one guess was right");
  check(c.ahead_reads == 2 && c.ahead_hits == 1, "and is counted");
  setup.step(1, {2, 3});
  check(setup.source->counters().reads == 4, "the wrong guess was not kept");
}

void a_prompt_is_read_before_its_layer_begins() {
  Setup setup(16 - 1, "scored", 2, 2);  // layer 1 keeps 2; 15 slots, of which 10 are transient
  const Ids needed = {0, 1, 2, 3, 4, 5, 6};
  check(setup.source->wants_advice(), "there is room");
  setup.cache().prefetch(1, needed);
  wait_for_reads(setup, 5);  // 2 for the share, 3 that layer 0 has not filled yet
  check(setup.cache().cached_in(1) == Ids({0, 1}), "as many as the layer keeps");
  check(!setup.source->wants_advice(), "no more room");
  setup.source->observe(1, Ids{0, 1, 2, 3, 5, 6}, 2);
  wait_for_reads(setup, 5);
  setup.step(1, {0, 1, 2, 3, 5, 6});
  const ExpertCounters c = setup.source->counters();
  check(c.reads == 7 && c.hits == 4 && c.misses == 2, "all but the last two had been read");
  check(c.ahead_reads == 5 && c.ahead_hits == 4, "one was not needed");
}

void advice_for_a_layer_that_begins_is_forgotten() {
  Setup setup(16 - 1, "scored", 2, 2);
  setup.script->delay(0, 20000);
  setup.cache().prefetch(1, Ids{0, 1, 2, 3, 4});
  setup.source->observe(1, Ids{6, 7}, 2);
  ExpertLease lease = setup.cache().acquire(1, Ids{6, 7});
  setup.wait_all(lease);
  lease = ExpertLease{};
  wait_for_reads(setup, 3);
  check(setup.source->counters().reads == 3, "only the read that had begun was carried out");
}

void one_pool_takes_no_advice() {
  Setup setup(3, "scored", 1);
  check(!setup.source->wants_advice(), "no layer has a share");
  setup.cache().prefetch(1, Ids{0, 1});
  setup.step(1, {2});
  check(setup.source->counters().reads == 1, "nothing was read for it");
}

void guesses_give_way_to_what_is_needed() {
  Setup setup(16 - 1, "scored", 2, 2);  // 10 transient, a lease of 8
  setup.cache().read_ahead(1, Ids{0, 1, 2, 3});
  wait_for_reads(setup, 4);
  const ExpertLease all = setup.cache().acquire(0, Ids{0, 1, 2, 3, 4, 5, 6, 7});
  check(all.size() == 8, "the lease has all its slots");
  check(!setup.source->try_acquire(1, Ids{0, 1, 2, 3, 4, 5, 6, 7}), "and no more fit");
  setup.cache().check_invariants();
}

void a_prompt_leaves_the_experts_of_the_best_scores() {
  for (const std::string& policy : policy_names()) {
    Setup setup(16 - 1, policy, 2, 2);  // 3 of 8 are kept in layer 0
    const Ids rows = {0, 1, 0, 7, 0, 2, 0, 6};
    setup.source->observe(0, rows, 2);
    for (const Ids& wave : {Ids{0, 1}, Ids{2, 6}, Ids{7}}) {
      ExpertLease lease = setup.cache().acquire(0, wave);
      setup.wait_all(lease);
    }
    setup.cache().check_invariants();
    check(setup.cache().cached_in(0) == Ids({0, 2, 6}), policy + ": not the last that were read");
  }
}

void what_a_layer_still_needs_is_not_evicted_before_its_turn() {
  Setup setup(16 - 1, "scored", 2, 2);
  setup.step(0, {6, 7});
  const int64_t before = setup.source->counters().reads;
  const Ids rows = {0, 1, 2, 3, 4, 5, 4, 6, 5, 7};
  setup.source->observe(0, rows, 2);
  for (const Ids& wave : {Ids{0, 1, 2, 3}, Ids{4, 5}, Ids{6, 7}}) {
    ExpertLease lease = setup.cache().acquire(0, wave);
    setup.wait_all(lease);
  }
  check(setup.source->counters().reads == before + 6, "the two that were there were not read");
}

void a_resident_layer_that_fails_to_load_may_be_loaded_again() {
  const TemporaryDirectory directory;
  const auto script = std::make_shared<FaultScript>();
  SfiShape shape;
  shape.num_layers = 2;
  ResidentSource source(write_experts(directory, shape), create_fault_engine(script, {2, true}));
  check_throws<ConfigError>([&] { source.acquire(0, Ids{0}); }, "not loaded");
  script->fail(3, EIO);
  check_throws<StorageError>([&] { source.load_layer(0); }, "of layer 0");
  script->flip_bit(0);
  check_throws<ContainerError>([&] { source.load_layer(0); }, "hash differs");
  check(source.resident_bytes() == 0, "nothing is kept");
  source.load_layer(0);
  source.load_layer(1);
  check(source.resident_bytes() == 2 * 8 * source.geometry().blob_bytes, "both layers");
  const ExpertLease lease = source.acquire(1, Ids{0, 7});
  check(lease.is_delivered(1) && source.active_leases() == 1, "delivered at once");
}

void layers_that_do_not_belong_together_are_refused() {
  const TemporaryDirectory directory;
  SfiShape shape;
  shape.num_layers = 2;
  auto paths = write_experts(directory, shape);
  check_throws<ContainerError>([&] { open_expert_files({paths[1], paths[0]}); },
                               "holds layer 1 where layer 0");
  shape.hidden_size = 200;
  write_bytes(paths[1], build_sfi(shape, 1));
  check_throws<ContainerError>([&] { open_expert_files(paths); }, "differ in shape");
  check_throws<ConfigError>([&] { open_expert_files({}); }, "no .sfi files");
}

}  // namespace

int main() {
  return run_facts(
      {{"the layout never exceeds its capacity", the_layout_never_exceeds_its_capacity},
       {"what can never fit is refused with the sum", what_can_never_fit_is_refused_with_the_sum},
       {"unknown policies are refused by naming the known",
        unknown_policies_are_refused_by_naming_the_known},
       {"a hit reads nothing and a miss reads once", a_hit_reads_nothing_and_a_miss_reads_once},
       {"the bound is kept by eviction and the step is protected",
        the_bound_is_kept_by_eviction_and_the_step_is_protected},
       {"scored keeps what is chosen often and lru what was chosen last",
        scored_keeps_what_is_chosen_often_and_lru_what_was_chosen_last},
       {"one pool still works below a token's experts",
        one_pool_still_works_below_a_tokens_experts},
       {"a leased expert is never evicted", a_leased_expert_is_never_evicted},
       {"equal reads in flight are merged", equal_reads_in_flight_are_merged},
       {"a failed read is not cached and the next acquire retries",
        a_failed_read_is_not_cached_and_the_next_acquire_retries},
       {"damaged bytes are found and not cached", damaged_bytes_are_found_and_not_cached},
       {"a dying lease orphans its reads until they end",
        a_dying_lease_orphans_its_reads_until_they_end},
       {"acquire waits for room and try_acquire does not",
        acquire_waits_for_room_and_try_acquire_does_not},
       {"heat survives export and import", heat_survives_export_and_import},
       {"preload fills each layer's share by falling heat",
        preload_fills_each_layers_share_by_falling_heat},
       {"preload waits while a lease waits for a read",
        preload_waits_while_a_lease_waits_for_a_read},
       {"a preload that fails is forgotten and read again on demand",
        a_preload_that_fails_is_forgotten_and_read_again_on_demand},
       {"a preload that is acquired meanwhile is read once",
        a_preload_that_is_acquired_meanwhile_is_read_once},
       {"a cache that dies cancels its preload", a_cache_that_dies_cancels_its_preload},
       {"what was read ahead is a hit or goes", what_was_read_ahead_is_a_hit_or_goes},
       {"a prompt is read before its layer begins", a_prompt_is_read_before_its_layer_begins},
       {"advice for a layer that begins is forgotten", advice_for_a_layer_that_begins_is_forgotten},
       {"one pool takes no advice", one_pool_takes_no_advice},
       {"guesses give way to what is needed", guesses_give_way_to_what_is_needed},
       {"a prompt leaves the experts of the best scores",
        a_prompt_leaves_the_experts_of_the_best_scores},
       {"what a layer still needs is not evicted before its turn",
        what_a_layer_still_needs_is_not_evicted_before_its_turn},
       {"a resident layer that fails to load may be loaded again",
        a_resident_layer_that_fails_to_load_may_be_loaded_again},
       {"layers that do not belong together are refused",
        layers_that_do_not_belong_together_are_refused}});
}
