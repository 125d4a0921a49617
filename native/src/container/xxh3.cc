#include "sparseflow/dispatch.h"
#include "sparseflow/sfi_file.h"

namespace sparseflow {

uint64_t xxh3_64(const void* data, size_t nbytes) noexcept {
  static const KernelTable& kernels = select_kernels("auto");
  return kernels.hash(data, static_cast<int64_t>(nbytes));
}

}  // namespace sparseflow
