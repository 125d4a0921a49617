// Expert files, expert stores and moe_forward. Everything that may take time runs without the
// interpreter lock.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings.h"
#include "sparseflow/errors.h"
#include "sparseflow/moe_forward.h"
#include "sparseflow/resident_source.h"
#include "sparseflow/streaming_source.h"
#include "sparseflow/weight_format.h"

namespace sparseflow {
namespace {

using Paths = std::vector<std::string>;
using Engine = std::shared_ptr<ReadEngine>;
using EngineOrName = std::variant<std::string, Engine>;
using Heat = nb::ndarray<nb::numpy, float, nb::ndim<3>>;

struct SfiFile {
  explicit SfiFile(std::string file_path)
      : path(std::move(file_path)), header(read_sfi_header(path)) {}

  std::string path;
  SfiHeader header;
};

// Three projections and the logit of their share, with the Python objects that hold the bytes.
struct SharedExpertHolder {
  Matrix gate, up, down, gate_logit;
  SharedExpert view() const { return {gate.view, up.view, down.view, gate_logit.view}; }
};

struct LookAheadHolder {
  int32_t layer;
  RouterHolder router;
  bool guesses_steps;
  LookAhead view() const { return {layer, router.view(), guesses_steps}; }
};

std::string shape_of(const MatrixView& w) {
  return "[" + std::to_string(w.rows) + ", " + std::to_string(w.cols) + "]";
}

void make_shared_expert(SharedExpertHolder* self, const Matrix& gate, const Matrix& up,
                        const Matrix& down, const Matrix& gate_logit) {
  const MatrixView& g = gate.view;
  expect(up.view.rows == g.rows && up.view.cols == g.cols,
         "up: expected the shape of gate, " + shape_of(g) + ", got " + shape_of(up.view));
  expect(up.view.format == g.format, "up: expected the format of gate");
  expect(down.view.rows == g.cols && down.view.cols == g.rows,
         "down: expected the transposed shape of gate, " + shape_of(g) + ", got " +
             shape_of(down.view));
  expect(gate_logit.view.format == WeightFormat::kFloat32 && gate_logit.view.rows == 1 &&
             gate_logit.view.cols == g.cols,
         "gate_logit: expected float32 [1, " + std::to_string(g.cols) + "]");
  new (self) SharedExpertHolder{gate, up, down, gate_logit};
}

Engine engine_of(const EngineOrName& engine, int queue_depth, bool direct_io) {
  if (const auto* ready = std::get_if<Engine>(&engine)) {
    expect(*ready != nullptr, "engine: None");
    return *ready;
  }
  return create_read_engine(std::get<std::string>(engine), {queue_depth, direct_io});
}

void make_streaming_source(StreamingSource* self, const Paths& paths, int64_t capacity_bytes,
                           int64_t num_experts_per_tok, const std::string& policy, int queue_depth,
                           bool direct_io, const EngineOrName& engine) {
  expect(num_experts_per_tok >= 1, "num_experts_per_tok: must be at least 1");
  const nb::gil_scoped_release release;
  new (self) StreamingSource(paths, {capacity_bytes, num_experts_per_tok, policy},
                             engine_of(engine, queue_depth, direct_io));
}

void make_resident_source(ResidentSource* self, const Paths& paths, int queue_depth, bool direct_io,
                          const EngineOrName& engine) {
  const nb::gil_scoped_release release;
  new (self) ResidentSource(paths, engine_of(engine, queue_depth, direct_io));
}

void forward(Runtime& runtime, ExpertSource& source, int32_t layer, const ConstRows& x,
             const Array<const int32_t, nb::ndim<2>>& topk_ids, const ConstRows& topk_weights,
             const SharedExpertHolder* shared, const Rows& residual, const LookAheadHolder* ahead) {
  const SfiGeometry& g = source.geometry();
  const int64_t num_tokens = dim(nb::ndarray<>(x), 0);
  const int64_t k = dim(nb::ndarray<>(topk_ids), 1);
  expect(layer >= 0 && layer < source.num_layers(),
         "layer: " + std::to_string(layer) + " of " + std::to_string(source.num_layers()));
  expect(k >= 1 && k <= g.num_experts,
         "topk_ids: expected 1 to " + std::to_string(g.num_experts) + " columns");
  expect_shape("x", nb::ndarray<>(x), {num_tokens, g.hidden_size});
  expect_shape("topk_ids", nb::ndarray<>(topk_ids), {num_tokens, k});
  expect_shape("topk_weights", nb::ndarray<>(topk_weights), {num_tokens, k});
  expect_shape("residual", nb::ndarray<>(residual), {num_tokens, g.hidden_size});
  std::optional<SharedExpert> view;
  if (shared != nullptr) {
    expect(shared->gate.view.cols == g.hidden_size,
           "shared: expected hidden_size " + std::to_string(g.hidden_size));
    view = shared->view();
  }
  std::optional<LookAhead> guess;
  if (ahead != nullptr) {
    const MatrixView& gate = ahead->router.gate.view;
    expect(ahead->layer >= 0 && ahead->layer < source.num_layers() && gate.cols == g.hidden_size &&
               gate.rows == g.num_experts,
           "ahead: does not fit this model");
    guess = ahead->view();
  }
  const auto pairs = static_cast<size_t>(num_tokens * k);
  const nb::gil_scoped_release release;
  const NativeCall guard(runtime, Part::kExperts);
  moe_forward(runtime, source,
              {layer,
               x.data(),
               num_tokens,
               {topk_ids.data(), pairs},
               {topk_weights.data(), pairs},
               k,
               view ? &*view : nullptr,
               residual.data(),
               guess ? &*guess : nullptr});
}

Heat export_heat(StreamingSource& source) {
  auto* values = new std::vector<float>(source.cache().export_heat());
  const nb::capsule owner(values,
                          [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  const auto layers = static_cast<size_t>(source.num_layers());
  return Heat(values->data(), {layers, static_cast<size_t>(source.geometry().num_experts), 2},
              owner);
}

void import_heat(StreamingSource& source, const Array<const float, nb::ndim<3>>& heat) {
  expect_shape("heat", nb::ndarray<>(heat),
               {source.num_layers(), source.geometry().num_experts, 2});
  source.cache().import_heat({heat.data(), heat.size()});
}

void bind_files(nb::module_& m) {
  nb::class_<SfiFile>(m, "SfiFile", "The checked header of one layer's .sfi file.")
      .def(nb::init<std::string>(), nb::arg("path"), nb::call_guard<nb::gil_scoped_release>(),
           "Reads and checks the header. ContainerError, UnsupportedError or StorageError.")
      .def_prop_ro("layer", [](const SfiFile& f) { return f.header.geometry.layer; })
      .def_prop_ro("num_experts", [](const SfiFile& f) { return f.header.geometry.num_experts; })
      .def_prop_ro("hidden_size", [](const SfiFile& f) { return f.header.geometry.hidden_size; })
      .def_prop_ro("moe_intermediate_size",
                   [](const SfiFile& f) { return f.header.geometry.moe_intermediate_size; })
      .def_prop_ro("format",
                   [](const SfiFile& f) { return weight_format_name(f.header.geometry.format); })
      .def_prop_ro("group_size", [](const SfiFile& f) { return f.header.geometry.group_size; })
      .def_prop_ro("header_bytes", [](const SfiFile& f) { return f.header.geometry.header_bytes; })
      .def_prop_ro("blob_bytes", [](const SfiFile& f) { return f.header.geometry.blob_bytes; })
      .def_prop_ro("payload_bytes",
                   [](const SfiFile& f) { return f.header.geometry.payload_bytes; })
      .def_prop_ro(
          "sections",
          [](const SfiFile& f) {
            std::vector<std::pair<int64_t, int64_t>> sections;
            for (const SfiSection& s : f.header.geometry.sections)
              sections.emplace_back(s.offset, s.nbytes);
            return sections;
          },
          "(offset, nbytes) within a blob: gate codes, gate scales, up codes, up scales, down "
          "codes, down scales.")
      .def(
          "check_expert",
          [](const SfiFile& f, int64_t expert) { check_sfi_expert(f.path, f.header, expert); },
          nb::arg("expert"), nb::call_guard<nb::gil_scoped_release>(),
          "Reads one expert and checks hash, finite scales and padding. ContainerError or "
          "StorageError.");
  m.def(
      "xxh3_64",
      [](const Array<const uint8_t, nb::ndim<1>>& data) {
        return xxh3_64(data.data(), data.size());
      },
      nb::arg("data"), "XXH3-64 with seed 0 of a one-dimensional uint8 array.");
  m.def(
      "xxh3_64", [](const nb::bytes& data) { return xxh3_64(data.data(), data.size()); },
      nb::arg("data"));
}

void bind_engines(nb::module_& m) {
  nb::class_<ReadEngine>(m, "ReadEngine", "Reads files, several requests at a time.")
      .def_prop_ro("name", &ReadEngine::name)
      .def_prop_ro("queue_depth", &ReadEngine::queue_depth);
  m.def(
      "create_read_engine",
      [](const std::string& name, int queue_depth, bool direct_io) {
        return create_read_engine(name, {queue_depth, direct_io});
      },
      nb::arg("name"), nb::arg("queue_depth") = 8, nb::arg("direct_io") = true,
      "An engine by its name; ConfigError names the known ones.");
  m.def("read_engine_names", &read_engine_names);
  m.def("policy_names", &policy_names);
}

void bind_sources(nb::module_& m) {
  nb::class_<ExpertCounters>(m, "ExpertCounters", "What a store did since it was opened.")
      .def_ro("hits", &ExpertCounters::hits)
      .def_ro("misses", &ExpertCounters::misses)
      .def_ro("evictions", &ExpertCounters::evictions)
      .def_ro("reads", &ExpertCounters::reads)
      .def_ro("failed_reads", &ExpertCounters::failed_reads)
      .def_ro("bytes_read", &ExpertCounters::bytes_read)
      .def_ro("read_wait_seconds", &ExpertCounters::read_wait_seconds)
      .def_ro("wait_cpu_seconds", &ExpertCounters::wait_cpu_seconds)
      .def_ro("read_busy_seconds", &ExpertCounters::read_busy_seconds)
      .def_ro("read_flight_seconds", &ExpertCounters::read_flight_seconds)
      .def_ro("preloaded", &ExpertCounters::preloaded)
      .def_ro("ahead_reads", &ExpertCounters::ahead_reads)
      .def_ro("ahead_hits", &ExpertCounters::ahead_hits)
      .def_ro("shrinks", &ExpertCounters::shrinks)
      .def_ro("grows", &ExpertCounters::grows);
  nb::class_<ArenaUse>(m, "ArenaUse", "How much of an arena is in use, in bytes.")
      .def_ro("full", &ArenaUse::full)
      .def_ro("allowed", &ArenaUse::allowed)
      .def_ro("held", &ArenaUse::held)
      .def_ro("touched", &ArenaUse::touched)
      .def_ro("least", &ArenaUse::least)
      .def_ro("segment", &ArenaUse::segment)
      .def_ro("open_segments", &ArenaUse::open_segments);
  nb::class_<ExpertSource>(m, "ExpertSource", "Where moe_forward gets experts from.")
      .def_prop_ro("num_layers", &ExpertSource::num_layers)
      .def_prop_ro("num_experts", [](const ExpertSource& s) { return s.geometry().num_experts; })
      .def_prop_ro("hidden_size", [](const ExpertSource& s) { return s.geometry().hidden_size; })
      .def_prop_ro("moe_intermediate_size",
                   [](const ExpertSource& s) { return s.geometry().moe_intermediate_size; })
      .def_prop_ro("format",
                   [](const ExpertSource& s) { return weight_format_name(s.geometry().format); })
      .def_prop_ro("blob_bytes", [](const ExpertSource& s) { return s.geometry().blob_bytes; })
      .def_prop_ro("active_leases", &ExpertSource::active_leases)
      .def_prop_ro("counters", &ExpertSource::counters);
  nb::class_<StreamingSource, ExpertSource>(m, "StreamingSource",
                                            "Experts leased from a bounded cache.")
      .def("__init__", &make_streaming_source, nb::arg("paths"), nb::arg("capacity_bytes"),
           nb::arg("num_experts_per_tok"), nb::arg("policy") = "scored", nb::arg("queue_depth") = 8,
           nb::arg("direct_io") = true, nb::arg("engine") = EngineOrName(std::string("pread")),
           "paths: one .sfi file per layer. An engine given as an object has its own queue_depth "
           "and direct_io.")
      .def_prop_ro("capacity_slots",
                   [](StreamingSource& s) { return s.cache().layout().num_slots; })
      .def_prop_ro("arena_bytes",
                   [](StreamingSource& s) { return s.cache().layout().arena_bytes(); })
      .def_prop_ro("transient_slots",
                   [](StreamingSource& s) { return s.cache().layout().num_transient; })
      .def_prop_ro("max_lease", &StreamingSource::max_lease)
      .def_prop_ro("is_split_by_layer",
                   [](StreamingSource& s) { return s.cache().layout().is_split_by_layer; })
      .def_prop_ro("layer_capacity",
                   [](StreamingSource& s) { return s.cache().layout().layer_capacity; })
      .def_prop_ro("layer_reads", [](StreamingSource& s) { return s.cache().layer_reads(); })
      .def_prop_ro("cached_experts", [](StreamingSource& s) { return s.cache().cached_experts(); })
      .def(
          "cached_in",
          [](StreamingSource& s, int32_t layer) {
            expect(layer >= 0 && layer < s.num_layers(), "layer: " + std::to_string(layer));
            return s.cache().cached_in(layer);
          },
          nb::arg("layer"))
      .def(
          "resize", &StreamingSource::resize, nb::arg("capacity_bytes"),
          nb::call_guard<nb::gil_scoped_release>(),
          "Uses at most so much of the arena from now on, by whole segments; returns how much that "
          "is. From any thread, also while a layer computes.")
      .def_prop_ro("arena_use",
                   [](StreamingSource& s) {
                     const nb::gil_scoped_release release;  // resize may hold the lock for a while
                     return s.cache().arena_use();
                   })
      .def_prop_ro("is_direct", &StreamingSource::is_direct)
      .def_prop_ro("engine", [](StreamingSource& s) { return s.engine().name(); })
      .def("export_heat", &export_heat, "Routing history, [num_layers, num_experts, 2].")
      .def("import_heat", &import_heat, nb::arg("heat"))
      .def(
          "preload", [](StreamingSource& s) { s.cache().preload(); },
          nb::call_guard<nb::gil_scoped_release>(),
          "Begins to read the experts of the best scores in the background. Returns at once.")
      .def(
          "check_invariants", [](StreamingSource& s) { s.cache().check_invariants(); },
          "RuntimeError naming a broken invariant. For tests.");
  nb::class_<ResidentSource, ExpertSource>(m, "ResidentSource",
                                           "All experts in memory, once loaded.")
      .def("__init__", &make_resident_source, nb::arg("paths"), nb::arg("queue_depth") = 8,
           nb::arg("direct_io") = true, nb::arg("engine") = EngineOrName(std::string("pread")))
      .def("load_layer", &ResidentSource::load_layer, nb::arg("layer"),
           nb::call_guard<nb::gil_scoped_release>(),
           "Reads and checks a layer's experts. StorageError, ContainerError or BudgetError.")
      .def_prop_ro("resident_bytes", &ResidentSource::resident_bytes)
      .def_prop_ro("engine", [](ResidentSource& s) { return s.engine().name(); })
      .def_prop_ro("is_direct", &ResidentSource::is_direct);
}

}  // namespace

void bind_storage(nb::module_& m) {
  bind_files(m);
  bind_engines(m);
  bind_testing(m);
  bind_sources(m);
  nb::class_<SharedExpertHolder>(
      m, "SharedExpert", "The expert that every token uses, scaled by sigmoid(gate_logit . x).")
      .def("__init__", &make_shared_expert, nb::arg("gate"), nb::arg("up"), nb::arg("down"),
           nb::arg("gate_logit"));
  nb::class_<LookAheadHolder>(m, "LookAhead",
                              "The next layer's router, to guess what it will choose.")
      .def(nb::init<int32_t, const RouterHolder&, bool>(), nb::arg("layer"), nb::arg("router"),
           nb::arg("guesses_steps") = false);
  m.def("moe_forward", &forward, nb::arg("runtime"), nb::arg("source"), nb::arg("layer"),
        nb::arg("x"), nb::arg("topk_ids"), nb::arg("topk_weights"), nb::arg("shared").none(),
        nb::arg("residual").noconvert(), nb::arg("ahead").none() = nb::none(),
        "One MoE layer: residual [T, H] += experts of x [T, H], topk_ids and topk_weights [T, k] "
        "(ids ascending in each row). "
        "StorageError or ContainerError if an expert cannot be read; no lease survives.");
}

}  // namespace sparseflow
