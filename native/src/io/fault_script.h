// Reads that fail on command, for tests: stands between an engine and the kernel, so that the
// engine's own recovery is what is tested.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "sparseflow/read_engine.h"

namespace sparseflow {

// What to do to which system call. Calls are counted from 0 over all files of an engine, in the
// order in which they begin. Thread-safe; may be changed while reads are under way.
class FaultScript {
 public:
  struct Fault {
    int error_number = 0;      // fail with this errno
    int64_t short_bytes = -1;  // read at most so many bytes
    int64_t delay_microseconds = 0;
    bool flips_bit = false;  // change one bit of what was read
  };

  // The fault of the given call from now on (0: the next one). Faults of one call add up.
  void fail(int64_t calls_from_now, int error_number);
  void shorten(int64_t calls_from_now, int64_t nbytes);
  void delay(int64_t calls_from_now, int64_t microseconds);
  void flip_bit(int64_t calls_from_now);
  // Applies to every call without a fault of its own, until clear().
  void always(const Fault& fault);
  void clear();

  int64_t num_calls() const;

  Fault next();  // for the engine: the fault of the call that begins now

  // What a call that read `count` bytes, or failed with -errno, gives instead. A call that is to
  // fail need not be made.
  static int64_t apply(const Fault& fault, void* buffer, int64_t count) noexcept;

 private:
  Fault& at(int64_t calls_from_now);

  mutable std::mutex mutex_;
  int64_t num_calls_ = 0;
  std::map<int64_t, Fault> faults_;
  Fault always_;
};

// A "pread" or "io_uring" engine whose system calls follow the script. Throws what
// create_read_engine throws.
std::shared_ptr<ReadEngine> create_fault_engine(std::shared_ptr<FaultScript> script,
                                                const ReadEngineOptions& options,
                                                const std::string& engine = "pread");

}  // namespace sparseflow
