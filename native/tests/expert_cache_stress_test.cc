// Readers on several threads, faults, evictions and a capacity that changes, together: bytes stay
// right, and afterwards nothing is leased or lost.
#include <atomic>
#include <cerrno>
#include <set>
#include <thread>

#include "check.h"
#include "io/fault_script.h"
#include "sfi_builder.h"
#include "sparseflow/errors.h"
#include "sparseflow/streaming_source.h"

using namespace sparseflow;
using namespace sparseflow::test;

namespace {

constexpr int kThreads = 4;
constexpr int kRounds = 400;

struct Shared {
  StreamingSource& source;
  std::vector<SfiHeader> headers;
  std::atomic<int> num_wrong{0};
  std::atomic<int> num_failed{0};
};

std::vector<int32_t> random_ids(std::mt19937& random, size_t count, int64_t num_experts) {
  std::set<int32_t> ids;
  while (ids.size() < count)
    ids.insert(static_cast<int32_t>(random() % static_cast<unsigned>(num_experts)));
  return {ids.begin(), ids.end()};
}

// Leases experts, uses all of them, some of them or none, and lets go.
void use_cache(Shared& shared, unsigned seed) {
  std::mt19937 random(seed);
  const SfiGeometry& g = shared.source.geometry();
  for (int round = 0; round < kRounds; ++round) {
    const auto layer =
        static_cast<int32_t>(random() % static_cast<unsigned>(shared.source.num_layers()));
    const auto most = static_cast<unsigned>(std::min<int64_t>(3, shared.source.max_lease()));
    const auto ids = random_ids(random, 1 + random() % most, g.num_experts);
    shared.source.observe(layer, ids, static_cast<int64_t>(ids.size()));
    try {
      ExpertLease lease = random() % 4 == 0 ? shared.source.try_acquire(layer, ids)
                                            : shared.source.acquire(layer, ids);
      if (!lease || random() % 5 == 0) continue;
      for (int i = 0; i < lease.size(); ++i) {
        while (!lease.is_delivered(i)) lease.wait_any();
        const uint64_t hash = shared.headers[static_cast<size_t>(layer)]
                                  .blob_hashes[static_cast<size_t>(lease.expert(i))];
        if (find_blob_error(g, hash, lease.blob(i)) != nullptr) ++shared.num_wrong;
      }
    } catch (const StorageError&) {
      ++shared.num_failed;
    } catch (const ContainerError&) {
      ++shared.num_failed;
    }
  }
}

void add_faults(FaultScript& script, const std::atomic<bool>& stop) {
  std::mt19937 random(99);
  while (!stop) {
    switch (random() % 5) {
      case 0:
        script.fail(random() % 5, EIO);
        break;
      case 1:
        script.fail(random() % 5, EINTR);
        break;
      case 2:
        script.shorten(random() % 5, random() % 5000);
        break;
      case 3:
        script.delay(random() % 5, random() % 500);
        break;
      default:
        script.flip_bit(random() % 5);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
}

// Reads that nobody waits for, begun and given up beside all the others.
void read_in_background(StreamingSource& source, const std::atomic<bool>& stop) {
  std::mt19937 random(7);
  while (!stop) {
    const auto layer = static_cast<int32_t>(random() % 3);
    if (random() % 8 == 0) source.cache().preload();
    source.read_ahead(layer, random_ids(random, 2, source.geometry().num_experts));
    if (random() % 4 == 0) {
      source.prefetch(layer, random_ids(random, 6, source.geometry().num_experts));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(150));
  }
}

// Any capacity at any time, in bursts and with pauses.
void resize_wildly(StreamingSource& source, int64_t num_slots, const std::atomic<bool>& stop) {
  std::mt19937 random(23);
  while (!stop) {
    const auto slots = static_cast<int64_t>(random() % static_cast<unsigned>(num_slots + 3));
    source.resize(slots * source.geometry().blob_bytes);
    const ArenaUse use = source.cache().arena_use();
    check(use.touched <= use.held && use.held <= use.full, "what is held");
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 2 == 0 ? 20 : 400));
  }
}

void stress(int64_t num_slots, const std::string& policy, const std::string& engine = "pread",
            bool is_resizing = false) {
  const TemporaryDirectory directory;
  SfiShape shape;
  shape.num_layers = 3;
  shape.num_experts = 12;
  const auto paths = write_experts(directory, shape);
  const auto script = std::make_shared<FaultScript>();
  StreamingOptions options;
  options.capacity_bytes = num_slots * read_sfi_header(paths[0]).geometry.blob_bytes;
  options.num_experts_per_tok = 2;
  options.policy = policy;
  StreamingSource source(paths, options, create_fault_engine(script, {3, true}, engine));
  Shared shared{source, open_expert_files(paths).headers};
  std::atomic<bool> stop{false};
  std::thread faults([&] { add_faults(*script, stop); });
  std::thread background([&] { read_in_background(source, stop); });
  std::thread resizer([&] {
    if (is_resizing) resize_wildly(source, num_slots, stop);
  });
  std::thread checker([&] {
    while (!stop) {
      source.cache().check_invariants();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back([&, i] { use_cache(shared, i); });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  faults.join();
  checker.join();
  background.join();
  resizer.join();
  source.cache().check_invariants();
  check(shared.num_wrong == 0, "every delivered expert had the right bytes");
  check(source.active_leases() == 0, "leases 0");
  check(shared.num_failed > 0 && source.counters().failed_reads > 0, "faults were met");
  check(source.counters().evictions > 0 || num_slots >= 36, "evictions happened");
  source.resize(options.capacity_bytes);
  const ArenaUse use = source.cache().arena_use();
  check(use.held == use.full && use.allowed == use.full, "all of the arena is back");
  check(!is_resizing || source.counters().shrinks > 3, "it shrank");
  // With the faults gone everything can be read again.
  script->clear();
  const auto step = static_cast<int32_t>(std::min<int64_t>(2, source.max_lease()));
  for (int32_t e = 0; e < 12; e += step) {
    std::vector<int32_t> ids;
    for (int32_t i = e; i < e + step; ++i) ids.push_back(i);
    ExpertLease lease = source.acquire(0, ids);
    for (int i = 0; i < lease.size(); ++i) {
      while (!lease.is_delivered(i)) lease.wait_any();
    }
  }
}

}  // namespace

int main() {
  return run_facts(
      {{"two slots", [] { stress(2, "lru"); }},
       {"five slots in one pool", [] { stress(5, "scored"); }},
       {"shares, scored", [] { stress(20, "scored"); }},
       {"shares, scored, read by what is best here",
        [] {
          const auto best = create_read_engine("auto", {});
          stress(20, "scored", best->name());
        }},
       {"shares, lru", [] { stress(25, "lru"); }},
       {"everything fits", [] { stress(36, "scored"); }},
       {"one pool, resized wildly", [] { stress(5, "scored", "pread", true); }},
       {"shares, resized wildly", [] { stress(25, "scored", "pread", true); }},
       {"shares, lru, resized wildly", [] { stress(20, "lru", "pread", true); }},
       {"everything fits, resized wildly", [] { stress(36, "scored", "pread", true); }}});
}
