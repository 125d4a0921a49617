#include "bindings.h"

NB_MODULE(_ext, m) {
  m.doc() = "C++ core of SparseFlow: kernels, expert cache and file reading.";
  sparseflow::register_errors();
  sparseflow::bind_ops(m);
  sparseflow::bind_blocks(m);
  sparseflow::bind_quantize(m);
  sparseflow::bind_storage(m);
  sparseflow::bind_probes(m);
  sparseflow::bind_simulator(m);
}
