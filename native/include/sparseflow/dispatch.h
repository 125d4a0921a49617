// Which kernel tables this build has and this CPU can run. Compiled for the baseline; features are
// read once.
#pragma once

#include <string>
#include <vector>

#include "sparseflow/kernel_table.h"

namespace sparseflow {

// The named table, or the best one for "auto". Throws ConfigError for a name that this build does
// not know (the message lists the known ones) and UnsupportedError where this CPU lacks an
// instruction set that the table needs.
const KernelTable& select_kernels(const std::string& name);

std::vector<std::string> known_isas();     // best first: every table of this build
std::vector<std::string> runnable_isas();  // best first: those that this CPU can run

}  // namespace sparseflow
