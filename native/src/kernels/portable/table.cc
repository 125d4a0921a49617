// Kernels for any CPU that the compiler's baseline covers.
// clang-format off: the algorithms are text over the vectors that simd.h defines
#include "kernels/portable/simd.h"
#include "kernels/generic/table-inl.h"
// clang-format on

namespace sparseflow {

extern const KernelTable kPortableKernels;
constinit const KernelTable kPortableKernels = make_table("portable", 0);

}  // namespace sparseflow
