// The only place that compiles the vendored hash.
#define XXH_INLINE_ALL
#define XXH_NO_STREAM
#include "xxhash/xxhash.h"

#include "sparseflow/sfi_file.h"

namespace sparseflow {

uint64_t xxh3_64(const void* data, size_t nbytes) noexcept { return XXH3_64bits(data, nbytes); }

}  // namespace sparseflow
