// Every item runs once, its writes are seen by the caller, and loops follow each other without a
// thread being lost.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "sparseflow/thread_pool.h"

namespace sparseflow {
namespace {

bool loops_are_complete(int num_threads, int64_t num_items, int num_loops) {
  ThreadPool pool(num_threads);
  std::vector<int64_t> results(static_cast<size_t>(num_items));
  std::vector<std::atomic<int>> users(static_cast<size_t>(num_threads));
  std::atomic<bool> shared{false};
  for (int loop = 1; loop <= num_loops; ++loop) {
    pool.parallel_for(num_items, [&](int64_t item, int thread) {
      std::atomic<int>& user = users[static_cast<size_t>(thread)];
      if (user.fetch_add(1) != 0) {
        shared = true;
      }
      results[static_cast<size_t>(item)] += loop;
      user.fetch_sub(1);
    });
    for (const int64_t result : results) {
      if (result != static_cast<int64_t>(loop) * (loop + 1) / 2) {
        std::printf("%d threads, %lld items: loop %d is not complete\n", num_threads,
                    static_cast<long long>(num_items), loop);
        return false;
      }
    }
    if (loop % 50 == 0) {  // long enough that the threads fall asleep
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  if (shared) {
    std::puts("two items ran at once under one thread number");
  }
  return !shared;
}

}  // namespace
}  // namespace sparseflow

int main() {
  bool good = true;
  for (const int threads : {1, 2, 3, 7}) {
    for (const int64_t items : {0, 1, 2, 5, 100}) {
      good = sparseflow::loops_are_complete(threads, items, 300) && good;
    }
  }
  return good ? 0 : 1;
}
