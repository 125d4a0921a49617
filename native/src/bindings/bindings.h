// What the binding files share: array types, the Python face of a matrix and of a runtime. Only
// bindings/ includes nanobind.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <string>

#include "sparseflow/errors.h"
#include "sparseflow/kernel_table.h"
#include "sparseflow/ops.h"
#include "sparseflow/runtime.h"

namespace sparseflow {

namespace nb = nanobind;

template <typename T, typename... Extra>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu, Extra...>;

// Rows of float32, [num_tokens, n].
using Rows = Array<float, nb::ndim<2>>;
using ConstRows = Array<const float, nb::ndim<2>>;

// "bf16-v1", "int8-v1", "float32"; throws ConfigError that names the known ones, UnsupportedError
// for "int4-g64-v1".
WeightFormat parse_format(const std::string& name);
const char* format_name(WeightFormat format);

// float32 or float16, as the format asks.
using ScaleArray = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu, nb::ro>;

// A weight matrix that keeps its arrays alive.
struct Matrix {
  MatrixView view;
  Array<const uint8_t, nb::ndim<1>> codes;
  std::optional<ScaleArray> scales;

  int64_t nbytes() const noexcept;
};

// A norm and the router behind it, with the Python objects that hold the bytes.
struct RouterHolder {
  Array<const float, nb::ndim<1>> norm_weight;
  float eps;
  Matrix gate;
  RouterBlock view() const { return {{norm_weight.data(), eps}, gate.view}; }
};

// Throws ConfigError "name: expected shape ..., got ..." unless the dimensions agree.
void expect_shape(const char* name, const nb::ndarray<>& array,
                  std::initializer_list<int64_t> shape);

int64_t dim(const nb::ndarray<>& array, size_t axis);

inline void expect(bool condition, const std::string& message) {
  if (!condition) throw ConfigError(message);
}

// Runs body without the interpreter lock, alone on the runtime and in the contract's float mode.
template <typename Body>
auto call(Runtime& runtime, Part part, Body body) {
  const nb::gil_scoped_release release;
  const NativeCall guard(runtime, part);
  return body();
}

// Keys or values of one layer, float32 or float16 [num_kv_heads, capacity, head_dim].
using KvArray = nb::ndarray<nb::ndim<3>, nb::c_contig, nb::device::cpu>;

// The cache with room for `tokens` at `position`; throws ConfigError if it does not fit the layer.
KvCacheView kv_cache_view(const AttentionLayer& layer, const KvArray& keys, const KvArray& values,
                          int64_t position, int64_t tokens);

void expect_delta_state(const DeltaLayer& layer, const Rows& conv_tail,
                        const Array<float, nb::ndim<3>>& state);

void expect_top_k(int64_t k, int64_t num_experts);

void register_errors();               // errors.cc
void bind_ops(nb::module_& m);        // ops.cc
void bind_blocks(nb::module_& m);     // blocks.cc: what a layer does in one call
void bind_quantize(nb::module_& m);   // quantize.cc
void bind_storage(nb::module_& m);    // storage.cc: files, expert stores, moe_forward
void bind_simulator(nb::module_& m);  // simulator.cc
void bind_probes(nb::module_& m);     // probes.cc: what this machine gives
void bind_testing(nb::module_& m);    // testing.cc: what only tests reach

}  // namespace sparseflow
