// Softmax attention of a few query heads over one segment of keys, with a running maximum
// (kernel_table.h, AttentionArgs).
#pragma once

namespace sparseflow {
namespace {

constexpr int64_t kQueryTile = 4;
constexpr int64_t kVectors = kKeyBlock / kLanes;  // vectors of a block's scores

// scores[q][j] = scale * (q . key j) for a block's num_keys keys; missing keys score -inf, so that
// they weigh exactly +0.
template <typename Keys, int kQueries>
SPARSEFLOW_INLINE void score_block(const AttentionArgs& args, const float* queries, int64_t key,
                                   int64_t num_keys, float (*scores)[kKeyBlock]) {
  const auto* keys = static_cast<const typename Keys::Element*>(args.keys) + key * args.head_dim;
  for (int64_t j = 0; j < num_keys; ++j) {
    dot_tile<Keys, 1, kQueries>(keys + j * args.head_dim, 0, queries, args.query_stride,
                                args.head_dim, &scores[0][j], kKeyBlock);
  }
  const float missing = -__builtin_inff();
  const F32 scale = set(args.scale);
  for (int q = 0; q < kQueries; ++q) {
    map(scores[q], num_keys, scores[q], [scale](F32 s) { return mul(s, scale); });
    for (int64_t j = num_keys; j < kKeyBlock; ++j) {
      scores[q][j] = missing;
    }
  }
}

// Turns a block's scores into weights against the new running maximum; returns the factor for what
// was summed before.
SPARSEFLOW_INLINE float weigh_block(float* scores, float* running_maximum, float* running_sum) {
  F32 s[kVectors];
  for (int64_t i = 0; i < kVectors; ++i) {
    s[i] = load(scores + 16 * i);
  }
  const float block_maximum = maximum(max(max(s[0], s[1]), max(s[2], s[3])));
  const float new_maximum = block_maximum > *running_maximum ? block_maximum : *running_maximum;
  float lanes[16];
  store(lanes, exp_lanes(set(*running_maximum - new_maximum)));
  const float rescale = lanes[0];
  F32 total = zero();
  for (int64_t i = 0; i < kVectors; ++i) {
    const F32 p = exp_lanes(sub(s[i], set(new_maximum)));
    total = add(total, p);
    store(scores + 16 * i, p);
  }
  *running_maximum = new_maximum;
  *running_sum = *running_sum * rescale + sum(total);
  return rescale;
}

// out = out * rescale, then fma over the block's keys in increasing order.
template <typename Values, int kQueries>
SPARSEFLOW_INLINE void add_values(const AttentionArgs& args, int64_t key, int64_t num_keys,
                                  const float (*weights)[kKeyBlock], const float* rescale,
                                  float* out) {
  const auto* values =
      static_cast<const typename Values::Element*>(args.values) + key * args.head_dim;
  for (int64_t c = 0; c < args.head_dim; c += kLanes) {
    F32 acc[kQueries];
    for (int q = 0; q < kQueries; ++q) {
      acc[q] = mul(load(out + q * args.out_stride + c), set(rescale[q]));
    }
    for (int64_t j = 0; j < num_keys; ++j) {
      const F32 value = Values::lanes(values + j * args.head_dim + c);
      for (int q = 0; q < kQueries; ++q) {
        acc[q] = fma(set(weights[q][j]), value, acc[q]);
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      store(out + q * args.out_stride + c, acc[q]);
    }
  }
}

template <typename Format, int kQueries>
void attend_tile(const AttentionArgs& args, int64_t first_query) {
  const float* queries = args.queries + first_query * args.query_stride;
  float* out = args.out + first_query * args.out_stride;
  float maxima[kQueries];
  float sums[kQueries];
  for (int q = 0; q < kQueries; ++q) {
    maxima[q] = -__builtin_inff();
    sums[q] = 0.0F;
    for (int64_t c = 0; c < args.head_dim; c += kLanes) {
      store(out + q * args.out_stride + c, zero());
    }
  }
  alignas(64) float scores[kQueries][kKeyBlock];
  float rescale[kQueries];
  for (int64_t key = args.key_begin; key < args.key_end; key += kKeyBlock) {
    const int64_t left = args.key_end - key;
    const int64_t num_keys = left < kKeyBlock ? left : kKeyBlock;
    score_block<Format, kQueries>(args, queries, key, num_keys, scores);
    for (int q = 0; q < kQueries; ++q) {
      rescale[q] = weigh_block(scores[q], &maxima[q], &sums[q]);
    }
    add_values<Format, kQueries>(args, key, num_keys, scores, rescale, out);
  }
  for (int q = 0; q < kQueries; ++q) {
    args.maxima[first_query + q] = maxima[q];
    args.sums[first_query + q] = sums[q];
  }
}

template <typename Format>
void attend(const AttentionArgs& args) {
  int64_t q = 0;
  for (; q + kQueryTile <= args.num_queries; q += kQueryTile) {
    attend_tile<Format, kQueryTile>(args, q);
  }
  for (; q < args.num_queries; ++q) {
    attend_tile<Format, 1>(args, q);
  }
}

void attention_segment_kernel(const AttentionArgs& args) noexcept {
  if (args.kv_format == KvFormat::kFloat16) {
    attend<HalfWeights>(args);
  } else {
    attend<FloatWeights>(args);
  }
}

void attention_merge_kernel(AttentionPart& into, const AttentionPart& from,
                            int64_t head_dim) noexcept {
  const float new_maximum = from.maximum > into.maximum ? from.maximum : into.maximum;
  float lanes[16];
  store(lanes, exp_lanes(set(into.maximum - new_maximum)));
  const float rescale = lanes[0];
  store(lanes, exp_lanes(set(from.maximum - new_maximum)));
  const float weight = lanes[0];
  into.maximum = new_maximum;
  into.sum = into.sum * rescale + from.sum * weight;
  const F32 a = set(rescale);
  const F32 b = set(weight);
  map(from.out, into.out, head_dim, into.out,
      [a, b](F32 f, F32 i) { return fma(f, b, mul(i, a)); });
}

void attention_finish_kernel(const AttentionPart& part, int64_t head_dim, float* out) noexcept {
  const F32 total = set(part.sum);
  map(part.out, head_dim, out, [total](F32 o) { return div(o, total); });
}

}  // namespace
}  // namespace sparseflow
