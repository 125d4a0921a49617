// Kernels for any CPU that the compiler's baseline covers.
#include "kernels/portable/simd.h"
#include "kernels/generic/table-inl.h"

namespace sparseflow {

extern const KernelTable kPortableKernels;
constinit const KernelTable kPortableKernels = make_table("portable", 0);

}  // namespace sparseflow
