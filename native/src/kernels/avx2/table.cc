// Kernels for x86-64 with AVX2, FMA and F16C.
// clang-format off: the algorithms are text over the vectors that simd.h defines
#include "kernels/avx2/simd.h"
#include "kernels/generic/table-inl.h"
// clang-format on

namespace sparseflow {

extern const KernelTable kAvx2Kernels;
constinit const KernelTable kAvx2Kernels = make_table("avx2", kCpuAvx2);

}  // namespace sparseflow
