// The contract between portable code and the kernels of one instruction set.
//
// Every function here runs on the calling thread over the slice that it is given; threads live in
// ops/ and moe/. Every table gives the same bits: which float operations happen, and in which
// order, is fixed by this header (docs/numerics.md). Plain structs and pointers only: files
// compiled with instruction-set flags include nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparseflow {

// Values are permanent: .sfi files carry them (docs/sfi_format.md).
enum class WeightFormat : int32_t {
  kBf16 = 1,
  kInt8 = 2,
  kInt4G64 = 3,
  kFloat32 = 4,
  kInt8G64 = 5,
  kInt6G64 = 6,
  kInt4G32 = 7,
};

enum class KvFormat : int32_t { kFloat32 = 0, kFloat16 = 1 };

constexpr int64_t kLanes =
    16;  // rows interleaved in integer formats; partial sums of float dot products
constexpr int64_t kGroup = 64;      // inputs that share an activation scale
constexpr int64_t kHalfGroup = 32;  // inputs whose codes are added up for themselves
constexpr int64_t kKeyBlock = 64;   // keys scored together, at absolute positions
constexpr int64_t kKeySegment =
    1024;  // keys with their own maximum, sum and output, at absolute positions

constexpr int64_t kMaxTaps = 16;  // taps of a causal convolution

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// A weight matrix W [rows, cols] of y = W x. Does not own.
//   kBf16, kFloat32: codes [rows, cols] row-major; scales null.
//   kInt8: codes uint8 [rows/16][cols/4][16][4] after padding rows to 16 and cols to 64, code + 128
//   (padding: 128);
//          scales float32 [rows padded to 16] (padding: 0).
// The others have a float16 scale for each row and 64 inputs, [rows/16][cols/64][16] (padding: 0),
// and the same padding:
//   kInt8G64: codes as kInt8.
//   kInt4G64: codes [rows/16][cols/8][16][4], code + 8: byte j of step s holds input 8 s + j in its
//   low and input 8 s + 4 + j in its high four bits (padding: 8).
//   kInt4G32: the same with a scale for each 32 inputs, [rows/16][cols/32][16].
//   kInt6G64: [rows/16][cols/64] of 512 bytes as in kInt4G64, the low four bits of code + 32, and
//   256 bytes [4][16][4]: byte j of step u holds in bits 2 m and 2 m + 1 the high two bits of input
//   16 u + 4 m + j (padding: 32).
struct MatrixView {
  WeightFormat format;
  int64_t rows;
  int64_t cols;
  const void* codes;
  const void* scales;
};

// Inputs of a matmul: num_tokens rows of x (float32, row stride in elements) and, for integer
// formats, the same quantized: codes int8 [num_tokens][cols padded to 64] (padding 0), scales
// float32 [num_tokens][cols padded / 64], sums of codes int32 [num_tokens][cols padded / 32].
struct Activations {
  const float* x;
  int64_t x_stride;
  const int8_t* codes;
  const float* scales;
  const int32_t* sums;
};

// Query heads of one token that share a key/value head, against the keys of one absolute segment.
// Scores in blocks of kKeyBlock keys: the block's maximum joins the running one, sum and out are
// rescaled by exp(old maximum - new), then p = exp(score - maximum) is added: to sum as 16 partial
// sums by key mod 16 and the fixed tree, to out by one fma per channel and key in increasing key.
// Nothing is divided yet.
struct AttentionArgs {
  const float* queries;  // num_queries rows of [head_dim]
  int64_t query_stride;  // elements
  int64_t num_queries;
  const void* keys;    // [>= key_end, head_dim] of kv_format, key 0 first
  const void* values;  // [>= key_end, head_dim] of kv_format
  KvFormat kv_format;
  int64_t key_begin;   // multiple of kKeySegment
  int64_t key_end;     // key_begin < key_end <= key_begin + kKeySegment
  int64_t head_dim;    // multiple of 16, at most 512
  float scale;         // applied to q.k
  float* out;          // num_queries rows of [head_dim]
  int64_t out_stride;  // elements
  float* maxima;       // [num_queries]
  float* sums;         // [num_queries]
};

// What attention_segment leaves for one query.
struct AttentionPart {
  float* out;
  float maximum;
  float sum;
};

// One value head of the gated delta rule over consecutive tokens; state is updated in place.
struct DeltaArgs {
  const float* query;  // [num_tokens] rows of [key_dim], stride in elements
  const float* key;
  const float* value;  // rows of [value_dim]
  int64_t qkv_stride;
  const float* decay;  // [num_tokens] exp(g), stride below
  const float* beta;   // [num_tokens]
  int64_t gate_stride;
  int64_t num_tokens;
  int64_t key_dim;
  int64_t value_dim;
  float* state;  // [key_dim, value_dim]
  float* out;    // rows of [value_dim]
  int64_t out_stride;
};

// What the weights of a group can become: codes in [lowest, highest] times a float16 scale.
// Divisors are what the group's extreme value becomes under the scales that the search tries.
struct CodeRange {
  int64_t num_inputs;  // of a group: 64 or 32
  float lowest;
  float highest;
  const float* divisors;
  int64_t num_divisors;
};

constexpr float kLargestHalf = 65504.0F;
constexpr float kSmallestHalf = 0x1p-24F;

// What a table's code needs of the CPU and of the operating system's saved registers.
enum CpuFeature : uint32_t {
  kCpuAvx2 = 1,    // AVX2, FMA and F16C
  kCpuAvx512 = 2,  // F, BW, DQ and VL
  kCpuAvx512Vnni = 4,
  kCpuAvxVnni = 8,
};

struct KernelTable {
  const char* name;
  uint32_t cpu_features;

  // XXH3-64 with seed 0.
  uint64_t (*hash)(const void* bytes, int64_t count) noexcept;

  // x [cols] -> codes [cols padded to 64], scales [cols padded / 64], sums [cols padded / 32].
  void (*quantize)(const float* x, int64_t cols, int8_t* codes, float* scales,
                   int32_t* sums) noexcept;

  // The weights of a group -> as many codes and the float16 bits of their scale (docs/numerics.md).
  // Returns the largest magnitude. If that is not finite, beyond -lowest times the largest float16,
  // or at most half the smallest one, scale and codes are 0.
  float (*fit_group)(const float* weights, const CodeRange& range, int8_t* codes,
                     uint16_t* scale) noexcept;

  // A row of weights, padded with zeros to a multiple of 64 -> its codes in int8-v1. Returns the
  // largest magnitude, whose 127th part is the scale; if that is 0 or not finite, codes are 0.
  float (*fit_row)(const float* weights, int64_t padded_cols, int8_t* codes) noexcept;

  // out[t * out_stride + r] = sum_k W[r, k] x[t, k] for the rows of 16-row blocks [block_begin,
  // block_end) and tokens [0, num_tokens). Rows beyond w.rows are not written. Integer formats read
  // codes/scales/sums, float formats read x.
  void (*matmul)(const MatrixView& w, int64_t block_begin, int64_t block_end, const Activations& x,
                 int64_t num_tokens, float* out, int64_t out_stride) noexcept;

  // out = x * (1 / sqrt(mean(x^2) + eps)) * weight, all [n].
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* out) noexcept;

  void (*l2_norm)(const float* x, int64_t n, float eps,
                  float* out) noexcept;  // x / sqrt(sum(x^2) + eps)
  void (*exp)(const float* x, int64_t n, float* out) noexcept;
  void (*sigmoid)(const float* x, int64_t n, float* out) noexcept;
  void (*softplus)(const float* x, int64_t n, float* out) noexcept;
  void (*silu)(const float* x, int64_t n, float* out) noexcept;
  void (*multiply)(const float* a, const float* b, int64_t n, float* out) noexcept;
  void (*add)(const float* a, const float* b, int64_t n, float* out) noexcept;
  void (*multiply_add)(float scale, const float* x, int64_t n,
                       float* acc) noexcept;  // acc = fma(scale, x, acc)
  void (*silu_multiply)(const float* gate, const float* up, int64_t n, float* out) noexcept;
  void (*to_half)(const float* x, int64_t n, uint16_t* out) noexcept;  // round to nearest even
  void (*bf16_to_float)(const uint16_t* x, int64_t n, float* out) noexcept;

  // Rotates x [head_dim] in place: pairs (i, i + n/2) of the first n = rotary_dim channels, cosines
  // and sines [n/2].
  void (*rotate)(float* x, const float* cosines, const float* sines, int64_t rotary_dim) noexcept;

  void (*attention_segment)(const AttentionArgs& args) noexcept;
  // into and from become one part, rescaled to the larger maximum; segments are merged in
  // increasing order.
  void (*attention_merge)(AttentionPart& into, const AttentionPart& from,
                          int64_t head_dim) noexcept;
  void (*attention_finish)(const AttentionPart& part, int64_t head_dim,
                           float* out) noexcept;  // out = part.out / sum

  void (*gated_delta)(const DeltaArgs& args) noexcept;

  // Causal depthwise convolution and silu over channels [channel_begin, channel_end).
  // x [num_tokens] rows of stride elements; weight [channels, kernel]; tail [channels, kernel - 1]
  // holds the inputs before the first token, oldest first, and is replaced by the last ones. out
  // has the stride of x. kernel is at most kMaxTaps.
  void (*conv_silu)(const float* x, int64_t num_tokens, int64_t stride, const float* weight,
                    int64_t kernel, int64_t channel_begin, int64_t channel_end, float* tail,
                    float* out) noexcept;
};

// The tables that this build has, best first, whether or not this CPU can run them.
const KernelTable* const* all_kernels(int* count) noexcept;

}  // namespace sparseflow
