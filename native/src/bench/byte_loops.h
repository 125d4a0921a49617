// The innermost loops of the probes, in the widest instructions that this CPU has.
//
// Wide code is compiled for its instruction set by function attributes, not by flags of the file:
// it calls nothing, so that no inline function compiled for a newer CPU can leak into the program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparseflow {

// Goes over n bytes (a multiple of 512, 64-byte aligned) and returns something that depends on all
// of them.
using ByteLoop = uint64_t (*)(const std::byte* data, int64_t n);

ByteLoop read_loop() noexcept;
ByteLoop dot_loop() noexcept;

// Runs `rounds` rounds of int8 multiply-accumulates on registers.
struct MacLoop {
  uint64_t (*run)(int64_t rounds);
  int64_t macs_per_round;
};

// The instructions of a kernel table, by its name.
MacLoop mac_loop(const char* isa) noexcept;

}  // namespace sparseflow
