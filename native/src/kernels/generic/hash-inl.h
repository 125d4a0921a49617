// XXH3-64 of an expert's bytes, by the vendored implementation, which picks its vectors from the
// instruction set that it is compiled for. All of it is static here.
#pragma once

#define XXH_INLINE_ALL
#define XXH_NO_STREAM
#define XXH_NO_STDLIB
#include "xxhash/xxhash.h"

namespace sparseflow {
namespace {

uint64_t hash_kernel(const void* bytes, int64_t count) noexcept {
  return XXH3_64bits(bytes, static_cast<size_t>(count));
}

}  // namespace
}  // namespace sparseflow
