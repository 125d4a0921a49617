// What a native computation needs: the kernels of one instruction set, a thread pool and scratch
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "sparseflow/float_environment.h"
#include "sparseflow/kernel_table.h"
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

 private:
  friend class NativeCall;
  const KernelTable& kernels_;
  ThreadPool pool_;
  Scratch scratch_;
  std::mutex mutex_;
};

// Held by every entry from Python for the whole call, with the interpreter lock already released:
// one call at a time per runtime, the contract's float mode, scratch emptied.
class NativeCall {
 public:
  explicit NativeCall(Runtime& runtime) : lock_(runtime.mutex_) { runtime.scratch_.reset(); }

 private:
  std::unique_lock<std::mutex> lock_;
  FloatEnvironment environment_;
};

}  // namespace sparseflow
