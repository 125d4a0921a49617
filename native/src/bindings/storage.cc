#include "bindings.h"

namespace sparseflow {

void bind_storage(nb::module_& /*m*/) {}

}  // namespace sparseflow
