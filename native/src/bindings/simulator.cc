// Recorded routes through the product's own cache.

#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "bindings.h"
#include "sparseflow/cache_simulator.h"
#include "sparseflow/errors.h"

namespace sparseflow {
namespace {

using Heat = nb::ndarray<nb::numpy, float, nb::ndim<3>>;

void make_simulator(CacheSimulator* self, const std::string& policy, int64_t num_layers,
                    int64_t num_experts, int64_t num_experts_per_tok, int64_t num_slots) {
  if (num_slots < 1) throw ConfigError("num_slots: must be at least 1");
  new (self) CacheSimulator(policy, {num_layers, num_experts, num_experts_per_tok}, num_slots);
}

int64_t forward(CacheSimulator& simulator, const Array<const int32_t, nb::ndim<3>>& experts) {
  const SimulatedModel& model = simulator.model();
  const int64_t num_tokens = dim(nb::ndarray<>(experts), 0);
  expect_shape("experts", nb::ndarray<>(experts),
               {num_tokens, model.num_layers, model.num_experts_per_tok});
  return simulator.forward({experts.data(), experts.size()}, num_tokens);
}

Heat export_heat(const CacheSimulator& simulator) {
  auto* values = new std::vector<float>(simulator.export_heat());
  const nb::capsule owner(values,
                          [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  const SimulatedModel& model = simulator.model();
  return Heat(values->data(),
              {static_cast<size_t>(model.num_layers), static_cast<size_t>(model.num_experts), 2},
              owner);
}

void import_heat(CacheSimulator& simulator, const Array<const float, nb::ndim<3>>& heat) {
  const SimulatedModel& model = simulator.model();
  expect_shape("heat", nb::ndarray<>(heat), {model.num_layers, model.num_experts, 2});
  simulator.import_heat({heat.data(), heat.size()});
}

}  // namespace

void bind_simulator(nb::module_& m) {
  nb::class_<CacheSimulator>(m, "CacheSimulator",
                             "The product's expert cache without experts: routes in, misses out.")
      .def("__init__", &make_simulator, nb::arg("policy"), nb::arg("num_layers"),
           nb::arg("num_experts"), nb::arg("num_experts_per_tok"), nb::arg("num_slots"),
           "num_slots: experts that are kept; slots for reads under way come on top.")
      .def("forward", &forward, nb::arg("experts"),
           "One pass over experts [num_tokens, num_layers, k], the most recent of a row last; "
           "returns the misses.")
      .def("export_heat", &export_heat, "Routing history, [num_layers, num_experts, 2].")
      .def("import_heat", &import_heat, nb::arg("heat"))
      .def("preload", &CacheSimulator::preload, "Fills the cache by falling heat.")
      .def_prop_ro("cached_experts", &CacheSimulator::cached_experts);
}

}  // namespace sparseflow
