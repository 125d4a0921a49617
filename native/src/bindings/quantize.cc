// Python's way to the integer formats: arrays of weights in, arrays of codes and scales out.
#include <nanobind/stl/string.h>

#include <vector>

#include "bindings/bindings.h"
#include "sparseflow/dispatch.h"
#include "sparseflow/errors.h"
#include "sparseflow/ops.h"
#include "sparseflow/weight_format.h"

namespace sparseflow {
namespace {

using Weights = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu, nb::ro>;

// A new array of one dimension that owns its memory.
nb::object new_array(size_t count, nb::dlpack::dtype dtype, void** data) {
  void* memory = ::operator new(count * dtype.bits / 8);
  const nb::capsule owner(memory, [](void* p) noexcept { ::operator delete(p); });
  *data = memory;
  return nb::cast(nb::ndarray<nb::numpy>(memory, 1, &count, owner, nullptr, dtype));
}

nb::tuple quantize_array(const std::string& format_text, const Weights& weights,
                         const std::string& isa) {
  const WeightFormat format = parse_format(format_text);
  const KernelTable& kernels = select_kernels(isa);
  const int64_t rows = dim(nb::ndarray<>(weights), 0);
  const int64_t cols = dim(nb::ndarray<>(weights), 1);
  const bool is_float = weights.dtype() == nb::dtype<float>();
  if (!is_integer(format)) {
    throw ConfigError("format " + format_text + " does not quantize");
  }
  if (!is_float && weights.dtype() != nb::dtype<uint16_t>()) {
    throw ConfigError("weights: expected float32, or uint16 holding bfloat16");
  }
  const auto scale_bits = static_cast<uint8_t>(8 * scale_item_bytes(format));
  const nb::dlpack::dtype scale_type{static_cast<uint8_t>(nb::dlpack::dtype_code::Float),
                                     scale_bits, 1};
  void* codes = nullptr;
  void* scales = nullptr;
  nb::object code_array =
      new_array(static_cast<size_t>(code_bytes(format, rows, cols)), nb::dtype<uint8_t>(), &codes);
  nb::object scale_array =
      new_array(static_cast<size_t>(num_scales(format, rows, cols)), scale_type, &scales);
  {
    const nb::gil_scoped_release release;
    auto* bytes = static_cast<uint8_t*>(codes);
    if (is_float) {
      quantize_weights(kernels, format, static_cast<const float*>(weights.data()), rows, cols,
                       bytes, scales);
    } else {
      quantize_weights(kernels, format, static_cast<const uint16_t*>(weights.data()), rows, cols,
                       bytes, scales);
    }
  }
  return nb::make_tuple(code_array, scale_array);
}

}  // namespace

void bind_quantize(nb::module_& m) {
  m.def("quantize_weights", quantize_array, nb::arg("format"), nb::arg("weights").noconvert(),
        nb::arg("isa") = "auto");
}

}  // namespace sparseflow
