// What this machine gives: memory read speed, int8 multiply-accumulates, and reads of files at a
// queue depth. For `bench` alone; no token passes through here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sparseflow/read_engine.h"
#include "sparseflow/runtime.h"

namespace sparseflow {

enum class MemoryLoop {
  kRead,  // loads of the widest registers, combined by one cheap operation
  kDot,   // every loaded byte is multiplied and added up, as a matrix times a vector does
};

// Seconds of each pass of all threads over `nbytes` of anonymous memory, huge pages where the host
// gives them. nbytes is rounded down to whole MiB, at least one. Instructions are the widest of
// this CPU, whatever the runtime's table. Called under a NativeCall.
std::vector<double> time_memory_passes(Runtime& runtime, int64_t nbytes, MemoryLoop loop,
                                       int passes);

// Multiply-accumulates a second of 8-bit integers from registers, all threads together, with the
// instructions that the runtime's table is made of. Called under a NativeCall.
double measure_int8_rate(Runtime& runtime, double seconds);

struct FileRange {
  int file;  // index into paths
  int64_t offset;
};

// Seconds that the engine takes for reads of nbytes each, as many at a time as its queue depth,
// into buffers that are used again. Throws StorageError for the first that fails.
double time_reads(ReadEngine& engine, const std::vector<std::string>& paths,
                  const std::vector<FileRange>& reads, int64_t nbytes);

}  // namespace sparseflow
