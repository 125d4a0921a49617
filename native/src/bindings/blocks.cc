// What a layer does between two sums into the residual, as one call: see ops.h.

#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bindings.h"

namespace sparseflow {
namespace {

using Norm = Array<const float, nb::ndim<1>>;
using Matrices = std::vector<const Matrix*>;

// Blocks with the Python objects that hold the bytes.
struct AttentionHolder {
  Norm norm_weight;
  float eps;
  Matrix query, key, value, out;
  AttentionLayer layer;
};
struct DeltaHolder {
  Norm norm_weight;
  float eps;
  Matrix qkv, z, b, a, out;
  DeltaLayer layer;
};

// Matrices of these numbers of rows that read rows as long as the norm's.
void expect_projections(const Norm& norm_weight, const Matrices& in_proj, const Matrix& out_proj,
                        const std::vector<int64_t>& rows, int64_t out_cols) {
  const auto hidden_size = static_cast<int64_t>(norm_weight.size());
  expect(in_proj.size() == rows.size(),
         "in_proj: expected " + std::to_string(rows.size()) + " matrices");
  const auto expect_matrix = [](const Matrix* matrix, const std::string& name, int64_t num_rows,
                                int64_t num_cols) {
    expect(matrix != nullptr && matrix->view.rows == num_rows && matrix->view.cols == num_cols,
           name + ": expected a matrix [" + std::to_string(num_rows) + ", " +
               std::to_string(num_cols) + "]");
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    expect_matrix(in_proj[i], "in_proj[" + std::to_string(i) + "]", rows[i], hidden_size);
  }
  expect_matrix(&out_proj, "out_proj", hidden_size, out_cols);
}

void make_attention_block(AttentionHolder* self, const Norm& norm_weight, float eps,
                          const Matrices& in_proj, const AttentionLayer& layer,
                          const Matrix& out_proj) {
  const int64_t queries = layer.num_heads * layer.head_dim;
  const int64_t keys = layer.num_kv_heads * layer.head_dim;
  expect_projections(norm_weight, in_proj, out_proj, {(layer.gated ? 2 : 1) * queries, keys, keys},
                     queries);
  new (self)
      AttentionHolder{norm_weight, eps, *in_proj[0], *in_proj[1], *in_proj[2], out_proj, layer};
}

void make_delta_block(DeltaHolder* self, const Norm& norm_weight, float eps,
                      const Matrices& in_proj, const DeltaLayer& layer, const Matrix& out_proj) {
  const int64_t heads = layer.num_value_heads;
  const int64_t values = heads * layer.value_dim;
  expect_projections(norm_weight, in_proj, out_proj, {layer.conv_dim(), values, heads, heads},
                     values);
  new (self) DeltaHolder{norm_weight, eps,         *in_proj[0], *in_proj[1],
                         *in_proj[2], *in_proj[3], out_proj,    layer};
}

void make_router(RouterHolder* self, const Norm& norm_weight, float eps, const Matrix& gate) {
  expect_shape("norm_weight", nb::ndarray<>(norm_weight), {gate.view.cols});
  new (self) RouterHolder{norm_weight, eps, gate};
}

int64_t expect_rows(const Norm& norm_weight, const Rows& x) {
  const int64_t tokens = dim(nb::ndarray<>(x), 0);
  expect_shape("x", nb::ndarray<>(x), {tokens, dim(nb::ndarray<>(norm_weight), 0)});
  return tokens;
}

void run_attention(Runtime& runtime, const AttentionHolder& block, const Rows& x, int64_t position,
                   const KvArray& keys, const KvArray& values) {
  const int64_t tokens = expect_rows(block.norm_weight, x);
  const KvCacheView cache = kv_cache_view(block.layer, keys, values, position, tokens);
  call(runtime, Part::kAttention, [&] {
    const AttentionBlock view{{block.norm_weight.data(), block.eps},
                              block.query.view,
                              block.key.view,
                              block.value.view,
                              &block.layer,
                              block.out.view};
    attention_block(runtime, view, x.data(), tokens, position, cache);
  });
}

void run_delta(Runtime& runtime, const DeltaHolder& block, const Rows& x, const Rows& conv_tail,
               const Array<float, nb::ndim<3>>& state) {
  const int64_t tokens = expect_rows(block.norm_weight, x);
  expect_delta_state(block.layer, conv_tail, state);
  call(runtime, Part::kDelta, [&] {
    const DeltaBlock view{{block.norm_weight.data(), block.eps},
                          block.qkv.view,
                          block.z.view,
                          block.b.view,
                          block.a.view,
                          &block.layer,
                          block.out.view};
    delta_block(runtime, view, x.data(), tokens, conv_tail.data(), state.data());
  });
}

void run_router(Runtime& runtime, const RouterHolder& router, const ConstRows& x,
                const Rows& normed, const Array<int32_t, nb::ndim<2>>& ids, const Rows& weights) {
  const int64_t tokens = dim(nb::ndarray<>(x), 0);
  const int64_t k = dim(nb::ndarray<>(ids), 1);
  expect_shape("x", nb::ndarray<>(x), {tokens, router.gate.view.cols});
  expect_shape("normed", nb::ndarray<>(normed), {tokens, router.gate.view.cols});
  expect_top_k(k, router.gate.view.rows);
  expect_shape("ids", nb::ndarray<>(ids), {tokens, k});
  expect_shape("weights", nb::ndarray<>(weights), {tokens, k});
  const bool is_finite = call(runtime, Part::kRouter, [&] {
    return route_block(runtime, router.view(), x.data(), tokens, k, normed.data(), ids.data(),
                       weights.data());
  });
  expect(is_finite, "router logits are not finite: the model's activations overflowed");
}

}  // namespace

void bind_blocks(nb::module_& m) {
  nb::class_<AttentionHolder>(m, "AttentionBlock", "x += out_proj(attention(in_proj(norm(x)))).")
      .def("__init__", make_attention_block, nb::arg("norm_weight").noconvert(), nb::arg("eps"),
           nb::arg("in_proj"), nb::arg("layer"), nb::arg("out_proj"))
      .def(
          "forward",
          [](const AttentionHolder& self, Runtime& runtime, const Rows& x, int64_t position,
             const KvArray& keys,
             const KvArray& values) { run_attention(runtime, self, x, position, keys, values); },
          nb::arg("runtime"), nb::arg("x").noconvert(), nb::arg("position"),
          nb::arg("keys").noconvert(), nb::arg("values").noconvert());
  nb::class_<DeltaHolder>(m, "DeltaBlock", "x += out_proj(gated_delta(in_proj(norm(x)))).")
      .def("__init__", make_delta_block, nb::arg("norm_weight").noconvert(), nb::arg("eps"),
           nb::arg("in_proj"), nb::arg("layer"), nb::arg("out_proj"))
      .def(
          "forward",
          [](const DeltaHolder& self, Runtime& runtime, const Rows& x, const Rows& conv_tail,
             const Array<float, nb::ndim<3>>& state) {
            run_delta(runtime, self, x, conv_tail, state);
          },
          nb::arg("runtime"), nb::arg("x").noconvert(), nb::arg("conv_tail").noconvert(),
          nb::arg("state").noconvert());
  nb::class_<RouterHolder>(m, "Router", "The norm before a layer's experts, and who chooses them.")
      .def("__init__", make_router, nb::arg("norm_weight").noconvert(), nb::arg("eps"),
           nb::arg("gate"))
      .def(
          "forward",
          [](const RouterHolder& self, Runtime& runtime, const ConstRows& x, const Rows& normed,
             const Array<int32_t, nb::ndim<2>>& ids,
             const Rows& weights) { run_router(runtime, self, x, normed, ids, weights); },
          nb::arg("runtime"), nb::arg("x").noconvert(), nb::arg("normed").noconvert(),
          nb::arg("ids").noconvert(), nb::arg("weights").noconvert());
}

}  // namespace sparseflow
