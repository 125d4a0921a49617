// Kernels for x86-64 with AVX2, FMA and F16C.
#include "kernels/avx2/products.h"
#include "kernels/generic/table-inl.h"

namespace sparseflow {

extern const KernelTable kAvx2Kernels;
constinit const KernelTable kAvx2Kernels = make_table("avx2", kCpuAvx2);

}  // namespace sparseflow
