// Every table that can run here, and the avx512_vnni one under emulation, gives the bits of the
// portable table. The portable table itself is compared with the readable twin by
// tests/contracts/test_kernel_tables.py.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "sparseflow/dispatch.h"
#include "sparseflow/float_environment.h"
#include "sparseflow/kernel_table.h"
#include "sparseflow/ops.h"
#include "sparseflow/weight_format.h"

namespace sparseflow {

#if defined(SPARSEFLOW_HAVE_SIMDE)
extern const KernelTable kEmulatedAvx512VnniKernels;
#endif

namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

// Deterministic inputs; wild() has every magnitude, zeros of both signs and subnormals.
class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  Floats normal(int64_t n, float scale = 1.0F) {
    std::normal_distribution<float> distribution(0.0F, scale);
    Floats x(static_cast<size_t>(n));
    std::generate(x.begin(), x.end(), [&] { return distribution(engine_); });
    return x;
  }
  Floats wild(int64_t n) {
    Floats x = normal(n);
    for (float& v : x) {
      const int64_t kind = between(0, 19);
      v = kind == 0   ? 0.0F
          : kind == 1 ? -0.0F
          : kind == 2 ? 0x1p-149F
                      : std::ldexp(v, static_cast<int>(between(-40, 20)));
    }
    return x;
  }
  Bytes bytes(int64_t n) {
    Bytes x(static_cast<size_t>(n));
    std::generate(x.begin(), x.end(), [&] { return static_cast<uint8_t>(between(0, 255)); });
    return x;
  }

 private:
  std::mt19937 engine_;
};

template <typename T>
void append(Bytes& result, const std::vector<T>& values) {
  const auto* p = reinterpret_cast<const uint8_t*>(values.data());
  result.insert(result.end(), p, p + values.size() * sizeof(T));
}

// A case computes something with a table from a seed and returns all outputs.
using Case = std::function<Bytes(const KernelTable&, Random&)>;

Bytes elementwise(const KernelTable& table, Random& random) {
  const int64_t n = random.between(1, 200);
  Floats x = random.wild(n);
  const Floats wide = random.normal(n, 60.0F);
  x.insert(x.end(), wide.begin(), wide.end());
  const auto count = static_cast<int64_t>(x.size());
  const Floats y = random.wild(count);
  Bytes result;
  Floats out(x.size());
  for (const auto function : {table.exp, table.sigmoid, table.softplus, table.silu}) {
    function(x.data(), count, out.data());
    append(result, out);
  }
  for (const auto function : {table.multiply, table.add, table.silu_multiply}) {
    function(x.data(), y.data(), count, out.data());
    append(result, out);
  }
  out = y;
  table.multiply_add(y[0], x.data(), count, out.data());
  append(result, out);
  table.rms_norm(x.data(), y.data(), count, 1e-6F, out.data());
  append(result, out);
  table.l2_norm(y.data(), count, 1e-6F, out.data());
  append(result, out);
  std::vector<uint16_t> half(x.size());
  table.to_half(x.data(), count, half.data());
  append(result, half);
  std::vector<uint16_t> bf16(x.size());
  for (uint16_t& bits : bf16) {
    bits = static_cast<uint16_t>(random.between(0, 0x7F7F));
  }
  table.bf16_to_float(bf16.data(), count, out.data());
  append(result, out);
  const int64_t half_rotary = random.between(0, count / 2);
  table.rotate(x.data(), y.data(), out.data(), 2 * half_rotary);
  append(result, x);
  return result;
}

Bytes matmul(const KernelTable& table, Random& random, WeightFormat format) {
  const int64_t rows = random.between(1, 70);
  const int64_t cols = random.between(1, 300);
  const int64_t tokens = random.between(1, 30);
  const int64_t padded = round_up(cols, kGroup);
  Bytes codes = random.bytes(code_bytes(format, rows, cols));
  if (format == WeightFormat::kFloat32) {
    const Floats weights = random.wild(rows * cols);
    std::memcpy(codes.data(), weights.data(), codes.size());
  } else if (format == WeightFormat::kBf16) {
    for (size_t i = 1; i < codes.size(); i += 2) {
      codes[i] &= 0xBF;  // no exponent of 255
    }
  }
  const Floats scales = random.wild(std::max<int64_t>(1, num_scales(format, rows, cols)));
  std::vector<uint16_t> half_scales(scales.size());
  for (uint16_t& bits : half_scales) {
    bits = static_cast<uint16_t>(random.between(0, 0xFFFF) & 0xBBFF);  // no exponent of 31
  }
  const Floats x = random.wild(tokens * cols);
  std::vector<int8_t> input_codes(static_cast<size_t>(tokens * padded));
  Floats input_scales(static_cast<size_t>(tokens * padded / kGroup));
  std::vector<int32_t> sums(2 * input_scales.size());
  for (int64_t t = 0; t < tokens; ++t) {
    table.quantize(x.data() + t * cols, cols, input_codes.data() + t * padded,
                   input_scales.data() + t * padded / kGroup,
                   sums.data() + t * padded / kHalfGroup);
  }
  Floats out(static_cast<size_t>(tokens * rows), 7.0F);
  const void* view_scales = scale_item_bytes(format) == 2
                                ? static_cast<const void*>(half_scales.data())
                                : static_cast<const void*>(scales.data());
  const MatrixView view{format, rows, cols, codes.data(), view_scales};
  const Activations inputs{x.data(), cols, input_codes.data(), input_scales.data(), sums.data()};
  table.matmul(view, 0, (rows + kLanes - 1) / kLanes, inputs, tokens, out.data(), rows);
  Bytes result;
  append(result, input_codes);
  append(result, input_scales);
  append(result, sums);
  append(result, out);
  return result;
}

Bytes attention_segment(const KernelTable& table, Random& random, KvFormat format) {
  const int64_t d = 16 * random.between(1, 5);
  const int64_t queries = random.between(1, 9);
  const int64_t keys = random.between(1, 300);
  const Floats q = random.normal(queries * d, 3.0F);
  Floats k = random.normal(keys * d, 2.0F);
  Floats v = random.normal(keys * d);
  if (format == KvFormat::kFloat16) {  // in place: half of the memory is used
    for (Floats* x : {&k, &v}) {
      std::vector<uint16_t> half(x->size());
      table.to_half(x->data(), keys * d, half.data());
      std::memcpy(x->data(), half.data(), half.size() * 2);
    }
  }
  Floats out(static_cast<size_t>(queries * d));
  Floats maxima(static_cast<size_t>(queries));
  Floats sums(static_cast<size_t>(queries));
  AttentionArgs args{};
  args.queries = q.data();
  args.query_stride = d;
  args.num_queries = queries;
  args.keys = k.data();
  args.values = v.data();
  args.kv_format = format;
  args.key_end = keys;
  args.head_dim = d;
  args.scale = 0.3F;
  args.out = out.data();
  args.out_stride = d;
  args.maxima = maxima.data();
  args.sums = sums.data();
  table.attention_segment(args);
  Bytes result;
  append(result, out);
  append(result, maxima);
  append(result, sums);
  if (queries > 1) {
    AttentionPart into{out.data(), maxima[0], sums[0]};
    table.attention_merge(into, {out.data() + d, maxima[1], sums[1]}, d);
    table.attention_finish(into, d, out.data());
    append(result, out);
  }
  return result;
}

Bytes gated_delta(const KernelTable& table, Random& random) {
  const int64_t tokens = random.between(1, 5);
  const int64_t key_dim = random.between(1, 40);
  const int64_t value_dim = random.between(1, 150);
  const Floats q = random.normal(tokens * 200);
  const Floats k = random.normal(tokens * 200);
  const Floats v = random.normal(tokens * 200);
  const Floats decay = random.normal(tokens);
  const Floats beta = random.normal(tokens);
  Floats state = random.normal(key_dim * value_dim);
  Floats out(static_cast<size_t>(tokens * value_dim));
  table.gated_delta({q.data(), k.data(), v.data(), 200, decay.data(), beta.data(), 1, tokens,
                     key_dim, value_dim, state.data(), out.data(), value_dim});
  Bytes result;
  append(result, state);
  append(result, out);
  return result;
}

Bytes conv_silu(const KernelTable& table, Random& random) {
  const int64_t tokens = random.between(1, 6);
  const int64_t channels = random.between(1, 100);
  const int64_t kernel = random.between(1, 6);
  const Floats x = random.normal(tokens * channels);
  const Floats weight = random.normal(channels * kernel);
  Floats tail = random.normal(channels * (kernel - 1));
  Floats out(static_cast<size_t>(tokens * channels));
  table.conv_silu(x.data(), tokens, channels, weight.data(), kernel, 0, channels, tail.data(),
                  out.data());
  Bytes result;
  append(result, tail);
  append(result, out);
  return result;
}

struct NamedCase {
  const char* name;
  Case run;
};

const std::vector<NamedCase>& cases() {
  static const std::vector<NamedCase> all = {
      {"elementwise", elementwise},
      {"matmul float32",
       [](const KernelTable& t, Random& r) { return matmul(t, r, WeightFormat::kFloat32); }},
      {"matmul bf16",
       [](const KernelTable& t, Random& r) { return matmul(t, r, WeightFormat::kBf16); }},
      {"matmul int8",
       [](const KernelTable& t, Random& r) { return matmul(t, r, WeightFormat::kInt8); }},
      {"matmul int8 in groups",
       [](const KernelTable& t, Random& r) { return matmul(t, r, WeightFormat::kInt8G64); }},
      {"matmul int6",
       [](const KernelTable& t, Random& r) { return matmul(t, r, WeightFormat::kInt6G64); }},
      {"matmul int4",
       [](const KernelTable& t, Random& r) { return matmul(t, r, WeightFormat::kInt4G64); }},
      {"matmul int4 in groups of 32",
       [](const KernelTable& t, Random& r) { return matmul(t, r, WeightFormat::kInt4G32); }},
      {"attention float32",
       [](const KernelTable& t, Random& r) { return attention_segment(t, r, KvFormat::kFloat32); }},
      {"attention float16",
       [](const KernelTable& t, Random& r) { return attention_segment(t, r, KvFormat::kFloat16); }},
      {"gated_delta", gated_delta},
      {"conv_silu", conv_silu},
  };
  return all;
}

std::vector<const KernelTable*> tables_to_check() {
  std::vector<const KernelTable*> tables;
  for (const std::string& name : runnable_isas()) {
    tables.push_back(&select_kernels(name));
  }
#if defined(SPARSEFLOW_HAVE_SIMDE)
  const std::vector<std::string> runnable = runnable_isas();
  if (std::find(runnable.begin(), runnable.end(), "avx2") != runnable.end()) {
    tables.push_back(&kEmulatedAvx512VnniKernels);
  } else {
    std::puts("avx512_vnni: not run, its emulation needs AVX2");
  }
#endif
  return tables;
}

int check_all() {
  constexpr uint32_t kSeeds = 60;
  const KernelTable& expected = select_kernels("portable");
  int failures = 0;
  for (const KernelTable* table : tables_to_check()) {
    for (const NamedCase& test : cases()) {
      for (uint32_t seed = 0; seed < kSeeds; ++seed) {
        Random mine(seed);
        Random theirs(seed);
        if (test.run(*table, mine) != test.run(expected, theirs)) {
          std::printf("%s: %s differs from portable, seed %u\n", table->name, test.name, seed);
          ++failures;
          break;
        }
      }
    }
    std::printf("%s: checked\n", table->name);
  }
  return failures;
}

}  // namespace
}  // namespace sparseflow

int main() {
  const sparseflow::FloatEnvironment environment;
  return sparseflow::check_all() == 0 ? 0 : 1;
}
