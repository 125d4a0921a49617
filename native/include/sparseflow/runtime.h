// What a native computation needs: the kernels of one instruction set, a thread pool and scratch
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sparseflow/float_environment.h"
#include "sparseflow/kernel_table.h"
#include "sparseflow/part_times.h"
#include "sparseflow/thread_pool.h"

namespace sparseflow {

// Working memory that grows to the largest call and is reused; 64-byte aligned, contents undefined.
class Scratch {
 public:
  // The returned blocks live until the next reset(). Called by one thread, between loops.
  float* floats(int64_t count) { return static_cast<float*>(bytes(count * 4)); }
  void* bytes(int64_t count);
  void reset() noexcept;
  int64_t capacity_bytes() const noexcept;

  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One per engine. Calls from several threads are safe and run one after another: each holds a
// NativeCall.
class Runtime {
 public:
  // Throws what select_kernels throws, and ConfigError for fewer than 1 or more than 1024 threads.
  Runtime(const std::string& isa, int threads);

  const KernelTable& kernels() const noexcept { return kernels_; }
  ThreadPool& pool() noexcept { return pool_; }
  Scratch& scratch() noexcept { return scratch_; }

  // Seconds of calls from Python by part since the last time.
  std::vector<PartTimes::Time> take_times() {
    const std::lock_guard lock(mutex_);
    return times_.take();
  }

 private:
  friend class NativeCall;
  const KernelTable& kernels_;
  ThreadPool pool_;
  Scratch scratch_;
  PartTimes times_;
  std::mutex mutex_;
};

// Held by every entry from Python for the whole call, with the interpreter lock already released:
// one call at a time per runtime, the contract's float mode, scratch emptied. Its time is booked on
// a part; waiting for another call is not counted.
class NativeCall {
 public:
  explicit NativeCall(Runtime& runtime, Part part = Part::kOther)
      : lock_(runtime.mutex_), runtime_(runtime), part_(part), start_(Clock::now()) {
    runtime.scratch_.reset();
  }
  ~NativeCall() {
    runtime_.times_.add(part_, std::chrono::duration<double>(Clock::now() - start_).count());
  }
  NativeCall(const NativeCall&) = delete;
  NativeCall& operator=(const NativeCall&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  std::unique_lock<std::mutex> lock_;
  Runtime& runtime_;
  Part part_;
  Clock::time_point start_;
  FloatEnvironment environment_;
};

}  // namespace sparseflow
