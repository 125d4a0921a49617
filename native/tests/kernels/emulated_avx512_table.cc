// The avx512_vnni table, compiled against emulated intrinsics under a name of its own.
#define SPARSEFLOW_EMULATE_AVX512
#define kAvx512VnniKernels kEmulatedAvx512VnniKernels
#include "kernels/avx512_vnni/table.cc"
