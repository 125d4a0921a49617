#include "sparseflow/runtime.h"

#include <cstdlib>
#include <new>
#include <vector>

#include "sparseflow/dispatch.h"
#include "sparseflow/errors.h"

namespace sparseflow {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int64_t kAlignment = 64;
constexpr int64_t kMinBlockBytes = 1 << 20;

int checked_threads(int threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw ConfigError("threads: " + std::to_string(threads) + " is not in 1 to " +
                      std::to_string(kMaxThreads));
  }
  return threads;
}

}  // namespace

// Blocks are handed out in order; after a reset they are used again, and merged into one if there
// were several.
struct Scratch::State {
  struct Block {
    char* memory;
    int64_t nbytes;
  };
  std::vector<Block> blocks;
  int64_t used = 0;  // of the last block

  int64_t total() const noexcept {
    int64_t nbytes = 0;
    for (const Block& block : blocks) {
      nbytes += block.nbytes;
    }
    return nbytes;
  }
  void release() noexcept {
    for (const Block& block : blocks) {
      std::free(block.memory);
    }
    blocks.clear();
    used = 0;
  }
  void add_block(int64_t nbytes) {
    blocks.reserve(blocks.size() + 1);
    void* memory = std::aligned_alloc(kAlignment, static_cast<size_t>(nbytes));
    if (memory == nullptr) {
      throw BudgetError("no memory for " + std::to_string(nbytes) + " bytes of working space",
                        nbytes, 0);
    }
    blocks.push_back({static_cast<char*>(memory), nbytes});
    used = 0;
  }
};

Scratch::Scratch() : state_(std::make_unique<State>()) {}
Scratch::~Scratch() { state_->release(); }

void* Scratch::bytes(int64_t count) {
  const int64_t nbytes = round_up(count, kAlignment);
  State& state = *state_;
  if (state.blocks.empty() || state.used + nbytes > state.blocks.back().nbytes) {
    state.add_block(nbytes > kMinBlockBytes ? nbytes : kMinBlockBytes);
  }
  char* memory = state.blocks.back().memory + state.used;
  state.used += nbytes;
  return memory;
}

void Scratch::reset() noexcept {
  State& state = *state_;
  if (state.blocks.size() > 1) {
    const int64_t nbytes = state.total();
    state.release();
    try {
      state.add_block(nbytes);
    } catch (...) {  // the next call allocates what it needs, or says that it cannot
      state.release();
    }
  }
  state.used = 0;
}

int64_t Scratch::capacity_bytes() const noexcept { return state_->total(); }

Runtime::Runtime(const std::string& isa, int threads)
    : kernels_(select_kernels(isa)), pool_(checked_threads(threads)) {}

}  // namespace sparseflow
