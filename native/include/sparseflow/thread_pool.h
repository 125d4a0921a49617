// A fixed set of compute threads that share loops. The caller's thread is one of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace sparseflow {

class ThreadPool {
 public:
  // REQUIRES: num_threads >= 1. Starts num_threads - 1 threads.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const noexcept;

  // Calls body(item, thread) once for every item in [0, num_items), claimed dynamically in increasing order, and returns when
  // all are done. thread is in [0, num_threads) and is not used twice at a time. body must not throw. One loop at a time.
  // Threads run with round-to-nearest and without flush-to-zero; so does the caller inside the loop.
  void parallel_for(int64_t num_items, const std::function<void(int64_t item, int thread)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparseflow
