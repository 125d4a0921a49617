// Probes of this machine, for `bench`.

#include "sparseflow/probes.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "sparseflow/errors.h"

namespace sparseflow {
namespace {

std::vector<double> memory_passes(Runtime& runtime, int64_t nbytes, const std::string& loop,
                                  int passes) {
  if (loop != "read" && loop != "dot") {
    throw ConfigError("loop: unknown '" + loop + "'; known: read, dot");
  }
  if (nbytes < 1 || passes < 1) throw ConfigError("nbytes, passes: must be at least 1");
  const MemoryLoop kind = loop == "read" ? MemoryLoop::kRead : MemoryLoop::kDot;
  const nb::gil_scoped_release release;
  const NativeCall guard(runtime);
  return time_memory_passes(runtime, nbytes, kind, passes);
}

double int8_rate(Runtime& runtime, double seconds) {
  const nb::gil_scoped_release release;
  const NativeCall guard(runtime);
  return measure_int8_rate(runtime, seconds);
}

double reads_seconds(ReadEngine& engine, const std::vector<std::string>& paths,
                     const std::vector<std::pair<int, int64_t>>& reads, int64_t nbytes) {
  std::vector<FileRange> ranges;
  ranges.reserve(reads.size());
  for (const auto& [file, offset] : reads) ranges.push_back({file, offset});
  const nb::gil_scoped_release release;
  return time_reads(engine, paths, ranges, nbytes);
}

}  // namespace

void bind_probes(nb::module_& m) {
  m.def("time_memory_passes", &memory_passes, nb::arg("runtime"), nb::arg("nbytes"),
        nb::arg("loop"), nb::arg("passes"));
  m.def("measure_int8_rate", &int8_rate, nb::arg("runtime"), nb::arg("seconds"));
  m.def("time_reads", &reads_seconds, nb::arg("engine"), nb::arg("paths"), nb::arg("reads"),
        nb::arg("nbytes"));
}

}  // namespace sparseflow
