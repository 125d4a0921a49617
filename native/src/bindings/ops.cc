// Matrices, layers and the ops of a Runtime: shapes are checked here, then the interpreter lock is
// released for the call.

#include "sparseflow/ops.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bindings.h"
#include "sparseflow/dispatch.h"
#include "sparseflow/errors.h"
#include "sparseflow/sfi_file.h"
#include "sparseflow/weight_format.h"

namespace sparseflow {
namespace {

using ConstVector = Array<const float, nb::ndim<1>>;
using FloatArray = Array<float>;
using ConstFloatArray = Array<const float>;

std::string shape_text(const nb::ndarray<>& array) {
  std::string text = "[";
  for (size_t i = 0; i < array.ndim(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(array.shape(i));
  }
  return text + "]";
}

template <typename A, typename B>
int64_t same_size(const char* a_name, const A& a, const char* b_name, const B& b) {
  bool same = a.ndim() == b.ndim();
  for (size_t i = 0; same && i < a.ndim(); ++i) {
    same = a.shape(i) == b.shape(i);
  }
  expect(same, std::string(b_name) + ": expected the shape of " + a_name + ", " +
                   shape_text(nb::ndarray<>(a)) + ", got " + shape_text(nb::ndarray<>(b)));
  return static_cast<int64_t>(a.size());
}

std::vector<float> copied(const char* name, const std::optional<ConstVector>& values,
                          int64_t expected) {
  if (!values) {
    return {};
  }
  expect_shape(name, nb::ndarray<>(*values), {expected});
  return {values->data(), values->data() + values->size()};
}

bool has_finite_scales(const ScaleArray& scales) {
  if (scales.itemsize() == 4) {
    return is_finite(static_cast<const float*>(scales.data()), static_cast<int64_t>(scales.size()));
  }
  const auto* halves = static_cast<const uint16_t*>(scales.data());
  return std::all_of(halves, halves + scales.size(),
                     [](uint16_t bits) { return (bits & 0x7C00U) != 0x7C00U; });
}

void check_scales(const std::string& format_text, WeightFormat format, int64_t rows, int64_t cols,
                  const std::optional<ScaleArray>& scales) {
  const int64_t expected = num_scales(format, rows, cols);
  expect((expected > 0) == scales.has_value(), expected > 0
                                                   ? "scales: " + format_text + " needs them"
                                                   : "scales: " + format_text + " has none");
  if (!scales) return;
  const int64_t item_bytes = scale_item_bytes(format);
  const nb::dlpack::dtype wanted{static_cast<uint8_t>(nb::dlpack::dtype_code::Float),
                                 static_cast<uint8_t>(8 * item_bytes), 1};
  expect(scales->dtype() == wanted,
         "scales: " + format_text + " has float" + std::to_string(8 * item_bytes) + " ones");
  expect_shape("scales", nb::ndarray<>(*scales), {expected});
  if (!has_finite_scales(*scales)) {
    throw ContainerError("matrix: a scale is not finite");
  }
}

void make_matrix(Matrix* self, const std::string& format_text, int64_t rows, int64_t cols,
                 Array<const uint8_t, nb::ndim<1>> codes, const std::optional<ScaleArray>& scales) {
  const WeightFormat format = parse_format(format_text);
  constexpr int64_t kMaxDimension = int64_t{1} << 24;
  expect(rows >= 1 && cols >= 1 && rows <= kMaxDimension && cols <= kMaxDimension,
         "matrix: rows and cols must be in 1 to 2^24, got " + std::to_string(rows) + " and " +
             std::to_string(cols));
  expect_shape("codes", nb::ndarray<>(codes), {code_bytes(format, rows, cols)});
  const int64_t element_bytes = format == WeightFormat::kFloat32 ? 4
                                : format == WeightFormat::kBf16  ? 2
                                                                 : 1;
  expect(reinterpret_cast<uintptr_t>(codes.data()) % static_cast<uintptr_t>(element_bytes) == 0,
         "codes: not aligned to " + std::to_string(element_bytes) + " bytes");
  check_scales(format_text, format, rows, cols, scales);
  new (self)
      Matrix{{format, rows, cols, codes.data(), scales ? scales->data() : nullptr}, codes, scales};
}

void make_attention_layer(AttentionLayer* self, int64_t num_heads, int64_t num_kv_heads,
                          int64_t head_dim, float scale, const ConstVector& inv_freq,
                          const std::optional<ConstVector>& q_norm,
                          const std::optional<ConstVector>& k_norm, float eps, bool gated) {
  expect(num_heads >= 1 && num_kv_heads >= 1 && num_heads % num_kv_heads == 0,
         "num_heads: must be a positive multiple of num_kv_heads");
  expect(head_dim >= 16 && head_dim <= 512 && head_dim % 16 == 0,
         "head_dim: must be a multiple of 16, at most 512, got " + std::to_string(head_dim));
  expect(2 * static_cast<int64_t>(inv_freq.size()) <= head_dim,
         "inv_freq: more than head_dim / 2 frequencies");
  new (self) AttentionLayer{.num_heads = num_heads,
                            .num_kv_heads = num_kv_heads,
                            .head_dim = head_dim,
                            .scale = scale,
                            .inv_freq = {inv_freq.data(), inv_freq.data() + inv_freq.size()},
                            .q_norm = copied("q_norm", q_norm, head_dim),
                            .k_norm = copied("k_norm", k_norm, head_dim),
                            .eps = eps,
                            .gated = gated};
}

void make_delta_layer(DeltaLayer* self, int64_t num_key_heads, int64_t num_value_heads,
                      int64_t key_dim, int64_t value_dim, const ConstRows& conv_weight,
                      const ConstVector& neg_exp_a, const ConstVector& dt_bias,
                      const ConstVector& norm_weight, float eps, float scale) {
  expect(num_key_heads >= 1 && num_value_heads >= 1 && num_value_heads % num_key_heads == 0,
         "num_value_heads: must be a positive multiple of num_key_heads");
  expect(key_dim >= 1 && value_dim >= 1 && key_dim <= 65536 && value_dim <= 65536,
         "key_dim, value_dim: must be in 1 to 65536");
  DeltaLayer layer;
  layer.num_key_heads = num_key_heads;
  layer.num_value_heads = num_value_heads;
  layer.key_dim = key_dim;
  layer.value_dim = value_dim;
  layer.kernel = dim(nb::ndarray<>(conv_weight), 1);
  expect(layer.kernel >= 1 && layer.kernel <= kMaxTaps,
         "conv_weight: at most " + std::to_string(kMaxTaps) + " taps");
  expect_shape("conv_weight", nb::ndarray<>(conv_weight), {layer.conv_dim(), layer.kernel});
  layer.conv_weight.assign(conv_weight.data(), conv_weight.data() + conv_weight.size());
  layer.neg_exp_a = copied("neg_exp_a", neg_exp_a, num_value_heads);
  layer.dt_bias = copied("dt_bias", dt_bias, num_value_heads);
  layer.norm_weight = copied("norm_weight", norm_weight, value_dim);
  layer.eps = eps;
  layer.scale = scale;
  new (self) DeltaLayer(std::move(layer));
}

void make_sample_params(SampleParams* self, float temperature, int64_t top_k, float top_p,
                        float min_p, float repetition_penalty, float presence_penalty,
                        uint64_t seed) {
  expect(std::isfinite(temperature) && temperature >= 0, "temperature: must be 0 or more");
  expect(top_k >= 0, "top_k: must be 0 (off) or more");
  expect(top_p > 0 && top_p <= 1, "top_p: must be above 0 and at most 1");
  expect(min_p >= 0 && min_p <= 1, "min_p: must be in 0 to 1");
  expect(std::isfinite(repetition_penalty) && repetition_penalty > 0,
         "repetition_penalty: must be above 0");
  expect(std::isfinite(presence_penalty), "presence_penalty: must be finite");
  new (self)
      SampleParams{temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, seed};
}

void linear_rows(Runtime& runtime, const std::vector<const Matrix*>& weights, const ConstRows& x,
                 const std::vector<Rows>& outs, const std::string& part) {
  expect(weights.size() == outs.size(), "linear: as many outs as weights expected, got " +
                                            std::to_string(outs.size()) + " and " +
                                            std::to_string(weights.size()));
  const int64_t tokens = dim(nb::ndarray<>(x), 0);
  std::vector<LinearOutput> outputs;
  outputs.reserve(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    expect(weights[i] != nullptr, "weights: None in the list");
    const MatrixView& view = weights[i]->view;
    expect_shape("x", nb::ndarray<>(x), {tokens, view.cols});
    expect_shape("outs", nb::ndarray<>(outs[i]), {tokens, view.rows});
    outputs.push_back({view, outs[i].data(), view.rows});
  }
  call(runtime, parse_part(part), [&] { linear(runtime, outputs, x.data(), tokens); });
}

void rms_norm_rows(Runtime& runtime, const ConstRows& x, const ConstVector& weight, float eps,
                   const Rows& out) {
  const int64_t tokens = dim(nb::ndarray<>(x), 0);
  const int64_t n = dim(nb::ndarray<>(x), 1);
  expect_shape("weight", nb::ndarray<>(weight), {n});
  same_size("x", x, "out", out);
  call(runtime, Part::kNorm,
       [&] { rms_norm(runtime, x.data(), {weight.data(), eps}, tokens, n, out.data()); });
}

void add_arrays(Runtime& runtime, const FloatArray& x, const ConstFloatArray& y) {
  const int64_t count = same_size("x", x, "y", y);
  call(runtime, Part::kNorm, [&] { add(runtime, x.data(), y.data(), count); });
}

void silu_multiply_arrays(Runtime& runtime, const ConstFloatArray& gate, const ConstFloatArray& up,
                          const FloatArray& out) {
  const int64_t count = same_size("gate", gate, "up", up);
  same_size("gate", gate, "out", out);
  call(runtime, Part::kOther,
       [&] { silu_multiply(runtime, gate.data(), up.data(), count, out.data()); });
}

void bf16_array_to_float(Runtime& runtime, const Array<const uint16_t>& x, const FloatArray& out) {
  const int64_t count = same_size("x", x, "out", out);
  call(runtime, Part::kEmbedding, [&] { bf16_to_float(runtime, x.data(), count, out.data()); });
}

void exp_array(Runtime& runtime, const ConstFloatArray& x, const FloatArray& out) {
  const int64_t count = same_size("x", x, "out", out);
  call(runtime, Part::kOther, [&] { exp(runtime, x.data(), count, out.data()); });
}

bool is_finite_array(Runtime& runtime, const ConstFloatArray& x) {
  const int64_t count = static_cast<int64_t>(x.size());
  return call(runtime, Part::kOther, [&] { return is_finite(x.data(), count); });
}

void attention_rows(Runtime& runtime, const AttentionLayer& layer, const ConstRows& query,
                    const ConstRows& key, const ConstRows& value, int64_t position,
                    const KvArray& keys, const KvArray& values, const Rows& out) {
  const int64_t tokens = dim(nb::ndarray<>(query), 0);
  const int64_t d = layer.head_dim;
  expect_shape("query", nb::ndarray<>(query),
               {tokens, layer.num_heads * d * (layer.gated ? 2 : 1)});
  expect_shape("key", nb::ndarray<>(key), {tokens, layer.num_kv_heads * d});
  expect_shape("value", nb::ndarray<>(value), {tokens, layer.num_kv_heads * d});
  expect_shape("out", nb::ndarray<>(out), {tokens, layer.num_heads * d});
  const KvCacheView cache = kv_cache_view(layer, keys, values, position, tokens);
  call(runtime, Part::kAttention, [&] {
    attention(runtime, layer, query.data(), key.data(), value.data(), position, tokens, cache,
              out.data());
  });
}

void gated_delta_rows(Runtime& runtime, const DeltaLayer& layer, const ConstRows& qkv,
                      const ConstRows& z, const ConstRows& b, const ConstRows& a,
                      const Rows& conv_tail, const Array<float, nb::ndim<3>>& state,
                      const Rows& out) {
  const int64_t tokens = dim(nb::ndarray<>(qkv), 0);
  const int64_t heads = layer.num_value_heads;
  expect_shape("qkv", nb::ndarray<>(qkv), {tokens, layer.conv_dim()});
  expect_shape("z", nb::ndarray<>(z), {tokens, heads * layer.value_dim});
  expect_shape("b", nb::ndarray<>(b), {tokens, heads});
  expect_shape("a", nb::ndarray<>(a), {tokens, heads});
  expect_delta_state(layer, conv_tail, state);
  expect_shape("out", nb::ndarray<>(out), {tokens, heads * layer.value_dim});
  call(runtime, Part::kDelta, [&] {
    gated_delta(runtime, layer, {qkv.data(), z.data(), b.data(), a.data()}, tokens,
                conv_tail.data(), state.data(), out.data());
  });
}

void route_rows(Runtime& runtime, const ConstRows& logits, int64_t k,
                const Array<int32_t, nb::ndim<2>>& ids, const Rows& weights) {
  const int64_t tokens = dim(nb::ndarray<>(logits), 0);
  const int64_t experts = dim(nb::ndarray<>(logits), 1);
  expect_top_k(k, experts);
  expect_shape("ids", nb::ndarray<>(ids), {tokens, k});
  expect_shape("weights", nb::ndarray<>(weights), {tokens, k});
  const bool finite = call(runtime, Part::kRouter, [&] {
    if (!is_finite(logits.data(), tokens * experts)) {
      return false;
    }
    route(runtime, logits.data(), tokens, experts, k, ids.data(), weights.data());
    return true;
  });
  expect(finite, "router logits are not finite: the model's activations overflowed");
}

KvFormat cache_format(const char* name, const nb::ndarray<>& array) {
  if (array.dtype() == nb::dtype<float>()) {
    return KvFormat::kFloat32;
  }
  constexpr auto kFloat = static_cast<uint8_t>(nb::dlpack::dtype_code::Float);
  if (array.dtype().code == kFloat && array.dtype().bits == 16 && array.dtype().lanes == 1) {
    return KvFormat::kFloat16;
  }
  throw ConfigError(std::string(name) + ": expected float32 or float16");
}

int32_t sample_id(Runtime& runtime, const ConstVector& logits,
                  const Array<const int32_t, nb::ndim<1>>& history, const SampleParams& params,
                  int64_t position, int64_t num_valid, int64_t num_prompt) {
  const auto size = static_cast<int64_t>(logits.size());
  expect(position >= 0, "position: must not be negative");
  expect(num_valid >= 1 && num_valid <= size, "num_valid: must be in 1 to the number of logits, " +
                                                  std::to_string(size) + ", got " +
                                                  std::to_string(num_valid));
  return call(runtime, Part::kSample, [&] {
    return sample(runtime, {logits.data(), logits.size()}, {history.data(), history.size()},
                  num_prompt, params, static_cast<uint64_t>(position), num_valid);
  });
}

}  // namespace

WeightFormat parse_format(const std::string& name) {
  std::string known;
  for (const WeightFormat format : weight_formats()) {
    if (name == weight_format_name(format)) {
      return format;
    }
    known += (known.empty() ? "" : ", ") + std::string(weight_format_name(format));
  }
  throw ConfigError("unknown format '" + name + "'; known: " + known);
}

int64_t Matrix::nbytes() const noexcept {
  return code_bytes(view.format, view.rows, view.cols) +
         scale_bytes(view.format, view.rows, view.cols);
}

void expect_shape(const char* name, const nb::ndarray<>& array,
                  std::initializer_list<int64_t> shape) {
  bool same = array.ndim() == shape.size();
  std::string expected;
  size_t axis = 0;
  for (const int64_t n : shape) {
    same = same && dim(array, axis) == n;
    expected += (axis == 0 ? "" : ", ") + std::to_string(n);
    ++axis;
  }
  expect(same, std::string(name) + ": expected shape [" + expected + "], got " + shape_text(array));
}

int64_t dim(const nb::ndarray<>& array, size_t axis) {
  return static_cast<int64_t>(array.shape(axis));
}

KvCacheView kv_cache_view(const AttentionLayer& layer, const KvArray& keys, const KvArray& values,
                          int64_t position, int64_t tokens) {
  const int64_t d = layer.head_dim;
  const int64_t capacity = dim(nb::ndarray<>(keys), 1);
  expect_shape("keys", nb::ndarray<>(keys), {layer.num_kv_heads, capacity, d});
  expect_shape("values", nb::ndarray<>(values), {layer.num_kv_heads, capacity, d});
  const KvFormat format = cache_format("keys", nb::ndarray<>(keys));
  expect(format == cache_format("values", nb::ndarray<>(values)),
         "values: expected the dtype of keys");
  expect(position >= 0 && position + tokens <= capacity,
         "position: " + std::to_string(position) + " and " + std::to_string(tokens) +
             " tokens exceed the capacity of " + std::to_string(capacity) + " keys");
  return {keys.data(), values.data(), format, capacity};
}

void expect_delta_state(const DeltaLayer& layer, const Rows& conv_tail,
                        const Array<float, nb::ndim<3>>& state) {
  expect_shape("conv_tail", nb::ndarray<>(conv_tail), {layer.conv_dim(), layer.kernel - 1});
  expect_shape("state", nb::ndarray<>(state),
               {layer.num_value_heads, layer.key_dim, layer.value_dim});
}

void expect_top_k(int64_t k, int64_t num_experts) {
  expect(k >= 1 && k <= num_experts, "k: must be in 1 to the number of experts, " +
                                         std::to_string(num_experts) + ", got " +
                                         std::to_string(k));
}

void bind_ops(nb::module_& m) {
  m.def("isa_names", runnable_isas,
        "Instruction sets that this build has and this CPU can run, best first.");
  m.def("known_isa_names", known_isas,
        "Instruction sets that this build has, best first, whether or not this CPU can run them.");

  nb::class_<Matrix>(m, "Matrix")
      .def("__init__", make_matrix, nb::arg("format"), nb::arg("rows"), nb::arg("cols"),
           nb::arg("codes").noconvert(), nb::arg("scales").noconvert().none() = nb::none())
      .def_prop_ro("format",
                   [](const Matrix& self) { return weight_format_name(self.view.format); })
      .def_prop_ro("rows", [](const Matrix& self) { return self.view.rows; })
      .def_prop_ro("cols", [](const Matrix& self) { return self.view.cols; })
      .def_prop_ro("nbytes", &Matrix::nbytes)
      .def("has_clean_padding", [](const Matrix& self) {
        const nb::gil_scoped_release release;
        return has_clean_padding(self.view);
      });

  nb::class_<AttentionLayer>(m, "AttentionLayer")
      .def("__init__", make_attention_layer, nb::arg("num_heads"), nb::arg("num_kv_heads"),
           nb::arg("head_dim"), nb::arg("scale"), nb::arg("inv_freq").noconvert(),
           nb::arg("q_norm").noconvert().none(), nb::arg("k_norm").noconvert().none(),
           nb::arg("eps"), nb::arg("gated"));
  nb::class_<DeltaLayer>(m, "DeltaLayer")
      .def("__init__", make_delta_layer, nb::arg("num_key_heads"), nb::arg("num_value_heads"),
           nb::arg("key_dim"), nb::arg("value_dim"), nb::arg("conv_weight").noconvert(),
           nb::arg("neg_exp_a").noconvert(), nb::arg("dt_bias").noconvert(),
           nb::arg("norm_weight").noconvert(), nb::arg("eps"), nb::arg("scale"));
  nb::class_<SampleParams>(m, "SampleParams")
      .def("__init__", make_sample_params, nb::arg("temperature") = 1.0F, nb::arg("top_k") = 0,
           nb::arg("top_p") = 1.0F, nb::arg("min_p") = 0.0F, nb::arg("repetition_penalty") = 1.0F,
           nb::arg("presence_penalty") = 0.0F, nb::arg("seed") = 0);

  nb::class_<Runtime>(m, "Runtime")
      .def(nb::init<const std::string&, int>(), nb::arg("isa") = "auto", nb::arg("threads") = 1)
      .def_prop_ro("isa", [](const Runtime& self) { return self.kernels().name; })
      .def_prop_ro("threads", [](Runtime& self) { return self.pool().num_threads(); })
      .def_prop_ro("scratch_bytes", [](Runtime& self) { return self.scratch().capacity_bytes(); })
      .def("take_times",
           [](Runtime& self) {
             std::map<std::string, double> times;
             for (const auto& [part, seconds] : self.take_times()) times[part_name(part)] = seconds;
             return times;
           })
      .def("linear", linear_rows, nb::arg("weights"), nb::arg("x").noconvert(),
           nb::arg("outs").noconvert(), nb::arg("part") = "other")
      .def("rms_norm", rms_norm_rows, nb::arg("x").noconvert(), nb::arg("weight").noconvert(),
           nb::arg("eps"), nb::arg("out").noconvert())
      .def("add", add_arrays, nb::arg("x").noconvert(), nb::arg("y").noconvert())
      .def("bf16_to_float", bf16_array_to_float, nb::arg("x").noconvert(),
           nb::arg("out").noconvert())
      .def("silu_multiply", silu_multiply_arrays, nb::arg("gate").noconvert(),
           nb::arg("up").noconvert(), nb::arg("out").noconvert())
      .def("attention", attention_rows, nb::arg("layer"), nb::arg("query").noconvert(),
           nb::arg("key").noconvert(), nb::arg("value").noconvert(), nb::arg("position"),
           nb::arg("keys").noconvert(), nb::arg("values").noconvert(), nb::arg("out").noconvert())
      .def("gated_delta", gated_delta_rows, nb::arg("layer"), nb::arg("qkv").noconvert(),
           nb::arg("z").noconvert(), nb::arg("b").noconvert(), nb::arg("a").noconvert(),
           nb::arg("conv_tail").noconvert(), nb::arg("state").noconvert(),
           nb::arg("out").noconvert())
      .def("route", route_rows, nb::arg("logits").noconvert(), nb::arg("k"),
           nb::arg("ids").noconvert(), nb::arg("weights").noconvert())
      .def("sample", sample_id, nb::arg("logits").noconvert(), nb::arg("history").noconvert(),
           nb::arg("params"), nb::arg("position"), nb::arg("num_valid"), nb::arg("num_prompt") = 0)
      .def("exp", exp_array, nb::arg("x").noconvert(), nb::arg("out").noconvert())
      .def("is_finite", is_finite_array, nb::arg("x").noconvert());

  m.def(
      "matrix_code_bytes",
      [](const std::string& format, int64_t rows, int64_t cols) {
        expect(rows >= 0 && cols >= 0, "rows, cols: must not be negative");
        return code_bytes(parse_format(format), rows, cols);
      },
      nb::arg("format"), nb::arg("rows"), nb::arg("cols"));
  m.def(
      "matrix_scale_bytes",
      [](const std::string& format, int64_t rows, int64_t cols) {
        expect(rows >= 0 && cols >= 0, "rows, cols: must not be negative");
        return scale_bytes(parse_format(format), rows, cols);
      },
      nb::arg("format"), nb::arg("rows"), nb::arg("cols"));
  m.def("philox_uniform", philox_uniform, nb::arg("seed"), nb::arg("position"));
}

}  // namespace sparseflow
