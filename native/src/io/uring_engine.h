// io_uring: one thread hands reads to the kernel and takes them back, as many at a time as the
// queue is deep. Linux only; where the build lacks <linux/io_uring.h>, the engine is not known.
#pragma once

#include <memory>

#include "io/fault_script.h"
#include "sparseflow/read_engine.h"

namespace sparseflow {

// Whether this build knows io_uring at all.
bool has_uring() noexcept;

// script: faults of its system calls, for tests; null: none. Throws ConfigError if the kernel
// refuses io_uring, as old ones, sandboxes and administrators do, or if the build lacks it.
std::shared_ptr<ReadEngine> create_uring_engine(const ReadEngineOptions& options,
                                                std::shared_ptr<FaultScript> script = nullptr);

}  // namespace sparseflow
