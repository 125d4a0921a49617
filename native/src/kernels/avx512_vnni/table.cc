// Kernels for x86-64 with AVX-512 (F, BW, DQ, VL) and VNNI.
#include "kernels/avx512_vnni/simd.h"
#include "kernels/generic/table-inl.h"

namespace sparseflow {

extern const KernelTable kAvx512VnniKernels;
constinit const KernelTable kAvx512VnniKernels =
    make_table("avx512_vnni", kCpuAvx2 | kCpuAvx512 | kCpuAvx512Vnni);

}  // namespace sparseflow
