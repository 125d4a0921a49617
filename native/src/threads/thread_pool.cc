#include "sparseflow/thread_pool.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "sparseflow/float_environment.h"

namespace sparseflow {
namespace {

constexpr auto kSpin = std::chrono::microseconds(20);

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Spins until done() holds, for at most kSpin.
template <typename Done>
bool spin_until(Done done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) {
        return true;
      }
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

}  // namespace

// A loop is open while its items may be claimed. A worker counts itself in `inside`, then looks
// whether the loop is open; the caller closes it, then waits for `inside` to be zero. Both pairs
// are sequentially consistent, so a worker that saw the loop open is waited for, and one that comes
// late sees it closed and touches nothing of the caller's.
struct ThreadPool::State {
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<int> inside{0};
  alignas(64) std::atomic<uint32_t> generation{0};
  std::atomic<bool> open{false};
  std::atomic<bool> stopping{false};
  int64_t num_items = 0;
  Function function = nullptr;
  void* context = nullptr;
  std::vector<std::thread> threads;

  void claim_items(int thread) {
    for (;;) {
      const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      if (item >= num_items) {
        return;
      }
      function(context, item, thread);
    }
  }

  void work(int thread) {
    const FloatEnvironment environment;
    uint32_t seen = 0;
    for (;;) {
      const auto changed = [&] { return generation.load(std::memory_order_acquire) != seen; };
      if (!spin_until(changed)) {
        generation.wait(seen, std::memory_order_acquire);
      }
      seen = generation.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_acquire)) {
        return;
      }
      inside.fetch_add(1);
      if (open.load()) {
        claim_items(thread);
      }
      if (inside.fetch_sub(1) == 1) {
        inside.notify_one();
      }
    }
  }

  void wait_until_nobody_is_inside() {
    if (spin_until([&] { return inside.load() == 0; })) {
      return;
    }
    for (int count = inside.load(); count != 0; count = inside.load()) {
      inside.wait(count);
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  state_->threads.reserve(static_cast<size_t>(num_threads - 1));
  for (int thread = 1; thread < num_threads; ++thread) {
    state_->threads.emplace_back([state = state_.get(), thread] { state->work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  state_->stopping.store(true, std::memory_order_release);
  state_->generation.fetch_add(1);
  state_->generation.notify_all();
  for (std::thread& thread : state_->threads) {
    thread.join();
  }
}

int ThreadPool::num_threads() const noexcept {
  return static_cast<int>(state_->threads.size()) + 1;
}

void ThreadPool::run(int64_t num_items, Function function, void* context) {
  const FloatEnvironment environment;
  State& state = *state_;
  if (num_items <= 1 || state.threads.empty()) {
    for (int64_t item = 0; item < num_items; ++item) {
      function(context, item, 0);
    }
    return;
  }
  state.num_items = num_items;
  state.function = function;
  state.context = context;
  state.next.store(0, std::memory_order_relaxed);
  state.open.store(true);
  state.generation.fetch_add(1);
  state.generation.notify_all();
  state.claim_items(0);
  state.open.store(false);
  state.wait_until_nobody_is_inside();
}

}  // namespace sparseflow
