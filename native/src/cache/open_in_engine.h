// Opens a container's expert files in a read engine.
#pragma once

#include <vector>

#include "sparseflow/expert_source.h"

namespace sparseflow {

// The engine's ids of the files, in layer order. Throws StorageError, and ContainerError if a file
// changed its size since its header was read.
std::vector<int> open_in_engine(const ExpertFiles& files, ReadEngine& engine);

}  // namespace sparseflow
