// Runs a fuzz target without libFuzzer: good inputs, every cut and every single-field change of
// them, and seeded random damage.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>

#include "fuzz_target.h"

namespace {

constexpr int kRandomInputs = 20000;
constexpr size_t kFieldBytes = 1024;  // where headers keep what matters

const uint64_t kInteresting[] = {0,          1,          0x7f,       0xff,       0xfff,
                                 0x1000,     0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32,
                                 1ull << 62, 1ull << 63, ~0ull,      ~0ull - 63, ~0ull - 4095};

int64_t num_inputs = 0;

void run(const std::vector<uint8_t>& input) {
  // An exact allocation, so that reading one byte too far is seen.
  std::vector<uint8_t> exact(input.begin(), input.end());
  exact.shrink_to_fit();
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  ++num_inputs;
}

void damage_systematically(const std::vector<uint8_t>& good) {
  run(good);
  for (size_t size = 0; size <= std::min(good.size(), kFieldBytes); ++size) {
    run({good.begin(), good.begin() + static_cast<ptrdiff_t>(size)});
  }
  for (size_t at = 0; at + 8 <= std::min(good.size(), kFieldBytes); at += 4) {
    for (const uint64_t value : kInteresting) {
      for (const size_t nbytes : {4u, 8u}) {
        std::vector<uint8_t> damaged = good;
        std::memcpy(damaged.data() + at, &value, nbytes);
        run(damaged);
      }
    }
  }
}

void damage_randomly(const std::vector<uint8_t>& good, std::mt19937_64& random) {
  std::vector<uint8_t> damaged = good;
  const size_t reach = random() % 2 == 0 ? kFieldBytes : good.size();
  for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
    const size_t at = random() % std::min(reach, damaged.size());
    switch (random() % 3) {
      case 0:
        damaged[at] ^= static_cast<uint8_t>(1u << random() % 8);
        break;
      case 1:
        damaged[at] = static_cast<uint8_t>(random());
        break;
      default: {
        const uint64_t value = kInteresting[random() % std::size(kInteresting)];
        std::memcpy(damaged.data() + at, &value, std::min<size_t>(8, damaged.size() - at));
      }
    }
  }
  if (random() % 8 == 0) damaged.resize(random() % (damaged.size() + 1));
  if (!damaged.empty()) run(damaged);
}

}  // namespace

int main() {
  std::mt19937_64 random(1);
  const auto inputs = good_inputs();
  for (const auto& good : inputs) damage_systematically(good);
  for (int i = 0; i < kRandomInputs; ++i) damage_randomly(inputs[random() % inputs.size()], random);
  std::printf("%lld inputs\n", static_cast<long long>(num_inputs));
  return 0;
}
