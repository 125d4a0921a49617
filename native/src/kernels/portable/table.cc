// Kernels for any CPU that the compiler's baseline covers.
#include "kernels/generic/table-inl.h"
#include "kernels/portable/simd.h"

namespace sparseflow {

extern const KernelTable kPortableKernels;
constinit const KernelTable kPortableKernels = make_table("portable", 0);

}  // namespace sparseflow
