// A fixed set of compute threads that share loops. The caller's thread is one of them.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace sparseflow {

class ThreadPool {
 public:
  // REQUIRES: num_threads >= 1. Starts num_threads - 1 threads.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const noexcept;

  // Calls body(item, thread) once for every item in [0, num_items), claimed dynamically in
  // increasing order, and returns when all are done; what the items wrote is visible to the caller.
  // thread is in [0, num_threads) and is not used twice at a time; the caller is thread 0. body
  // must not throw and must not start a loop. One loop at a time. Threads run with round-to-nearest
  // and without flush-to-zero; so does the caller inside the loop. A waiting thread spins for at
  // most 20 microseconds, then sleeps. A thread that sleeps through a loop does not delay it.
  template <typename Body>
  void parallel_for(int64_t num_items, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        num_items,
        [](void* context, int64_t item, int thread) {
          (*static_cast<Plain*>(context))(item, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Function = void (*)(void* context, int64_t item, int thread);
  void run(int64_t num_items, Function function, void* context);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparseflow
