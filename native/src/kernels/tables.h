// The tables that the build may have; dispatch.cc chooses, each table.cc defines one.
#pragma once

#include "sparseflow/kernel_table.h"

namespace sparseflow {

extern const KernelTable kPortableKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx2VnniKernels;
extern const KernelTable kAvx2VnniEvexKernels;
extern const KernelTable kAvx512VnniKernels;

}  // namespace sparseflow
