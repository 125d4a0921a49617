// Kernels for x86-64 with AVX2, FMA, F16C and AVX-VNNI.
#include "kernels/avx2_vnni/products.h"
#include "kernels/generic/table-inl.h"

namespace sparseflow {

extern const KernelTable kAvx2VnniKernels;
constinit const KernelTable kAvx2VnniKernels = make_table("avx2_vnni", kCpuAvx2 | kCpuAvxVnni);

}  // namespace sparseflow
