// The avx2_vnni kernels for CPUs whose 256-bit dot product comes with AVX-512.
#include "kernels/avx2_vnni/products.h"
#include "kernels/generic/table-inl.h"

namespace sparseflow {

extern const KernelTable kAvx2VnniEvexKernels;
constinit const KernelTable kAvx2VnniEvexKernels =
    make_table("avx2_vnni", kCpuAvx2 | kCpuAvx512 | kCpuAvx512Vnni);

}  // namespace sparseflow
