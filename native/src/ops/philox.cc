// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3).

#include <array>
#include <cstdint>

#include "sparseflow/ops.h"

namespace sparseflow {

double philox_uniform(uint64_t seed, uint64_t position) {
  std::array<uint32_t, 4> counter = {static_cast<uint32_t>(position),
                                     static_cast<uint32_t>(position >> 32), 0, 0};
  std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53U} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  const uint64_t word = (uint64_t{counter[0]} << 32) | counter[1];
  return static_cast<double>(word >> 11) * 0x1p-53;
}

}  // namespace sparseflow
