// A caller that flushes subnormals to zero changes nothing in a call, on no thread, and gets its
// mode back.

#include <cstdint>
#include <cstdio>
#include <vector>

#include "sparseflow/float_environment.h"
#include "sparseflow/ops.h"
#include "sparseflow/runtime.h"

#if defined(__SSE__)
#include <xmmintrin.h>

namespace sparseflow {
namespace {

constexpr unsigned kFlushing = 0x9FC0;  // flush to zero, subnormals read as zero

bool call_keeps_subnormals(int threads) {
  Runtime runtime("portable", threads);
  std::vector<float> x(200000, 0x1p-149F);
  const std::vector<float> y(x.size(), 0x1p-149F);
  _mm_setcsr(kFlushing);
  {
    const NativeCall guard(runtime);
    add(runtime, x.data(), y.data(), static_cast<int64_t>(x.size()));
  }
  const bool is_restored = _mm_getcsr() == kFlushing;
  _mm_setcsr(0x1F80);
  int64_t flushed = 0;
  for (const float value : x) {
    flushed += value == 0x1p-148F ? 0 : 1;
  }
  if (flushed != 0 || !is_restored) {
    std::printf("%d threads: %lld sums flushed, mode restored: %d\n", threads,
                static_cast<long long>(flushed), is_restored ? 1 : 0);
  }
  return flushed == 0 && is_restored;
}

}  // namespace
}  // namespace sparseflow

int main() {
  bool good = true;
  for (const int threads : {1, 2, 5}) {
    good = sparseflow::call_keeps_subnormals(threads) && good;
  }
  return good ? 0 : 1;
}
#else
int main() { return 0; }
#endif
