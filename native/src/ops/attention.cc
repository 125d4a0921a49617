#include <algorithm>
#include <cstdint>
#include <cstring>

#include "sparseflow/ops.h"

namespace sparseflow {
namespace {

int64_t num_segments(int64_t num_keys) { return (num_keys + kKeySegment - 1) / kKeySegment; }

// One call's inputs and working memory.
class AttentionCall {
 public:
  AttentionCall(Runtime& runtime, const AttentionLayer& layer, const KvCacheView& cache,
                int64_t position, int64_t num_tokens)
      : runtime_(runtime),
        kernels_(runtime.kernels()),
        layer_(layer),
        cache_(cache),
        position_(position),
        num_tokens_(num_tokens),
        group_(layer.num_heads / layer.num_kv_heads),
        half_rotary_(static_cast<int64_t>(layer.inv_freq.size())),
        queries_(runtime.scratch().floats(num_tokens * layer.num_heads * layer.head_dim)),
        cosines_(runtime.scratch().floats(num_tokens * half_rotary_)),
        sines_(runtime.scratch().floats(num_tokens * half_rotary_)) {}

  void compute_angles() {
    runtime_.pool().parallel_for(num_tokens_, [&](int64_t t, int) {
      rotary_angles(position_ + t, layer_.inv_freq.data(), half_rotary_,
                    cosines_ + t * half_rotary_, sines_ + t * half_rotary_);
    });
  }

  // Per (token, head): queries into working memory, keys and values into the cache.
  void prepare_heads(const float* query, const float* key, const float* value) {
    const int64_t heads = layer_.num_heads + layer_.num_kv_heads;
    runtime_.pool().parallel_for(num_tokens_ * heads, [&](int64_t item, int) {
      const int64_t t = item / heads;
      const int64_t h = item % heads;
      if (h < layer_.num_heads) {
        prepare_query(query, t, h);
      } else {
        append(key, value, t, h - layer_.num_heads);
      }
    });
  }

  // Each item is a token's group of heads; with few of them each segment of the keys is an item of
  // its own.
  void attend(const float* gate_source, float* out) {
    const int64_t items = num_tokens_ * layer_.num_kv_heads;
    const int64_t segments = num_segments(position_ + num_tokens_);
    if (segments > 1 && items < 4 * runtime_.pool().num_threads()) {
      attend_by_segment(gate_source, out, segments);
    } else {
      attend_by_group(gate_source, out);
    }
  }

 private:
  void normalise_and_rotate(float* x, const std::vector<float>& weight, int64_t t) const {
    if (!weight.empty()) {
      kernels_.rms_norm(x, weight.data(), layer_.head_dim, layer_.eps, x);
    }
    kernels_.rotate(x, cosines_ + t * half_rotary_, sines_ + t * half_rotary_, 2 * half_rotary_);
  }

  void prepare_query(const float* query, int64_t t, int64_t h) {
    const int64_t d = layer_.head_dim;
    const int64_t index = t * layer_.num_heads + h;
    float* x = queries_ + index * d;
    std::memcpy(x, query + index * d * (layer_.gated ? 2 : 1), static_cast<size_t>(d) * 4);
    normalise_and_rotate(x, layer_.q_norm, t);
  }

  void append(const float* key, const float* value, int64_t t, int64_t h) {
    const int64_t d = layer_.head_dim;
    float x[512];
    std::memcpy(x, key + (t * layer_.num_kv_heads + h) * d, static_cast<size_t>(d) * 4);
    normalise_and_rotate(x, layer_.k_norm, t);
    const float* v = value + (t * layer_.num_kv_heads + h) * d;
    const int64_t at = (h * cache_.capacity + position_ + t) * d;
    if (cache_.format == KvFormat::kFloat16) {
      kernels_.to_half(x, d, static_cast<uint16_t*>(cache_.keys) + at);
      kernels_.to_half(v, d, static_cast<uint16_t*>(cache_.values) + at);
    } else {
      std::memcpy(static_cast<float*>(cache_.keys) + at, x, static_cast<size_t>(d) * 4);
      std::memcpy(static_cast<float*>(cache_.values) + at, v, static_cast<size_t>(d) * 4);
    }
  }

  const void* head_start(const void* base, int64_t kv_head) const {
    const int64_t element_bytes = cache_.format == KvFormat::kFloat16 ? 2 : 4;
    return static_cast<const char*>(base) +
           kv_head * cache_.capacity * layer_.head_dim * element_bytes;
  }

  // Token t's heads of a key/value head against one segment; parts are [group].
  void attend_segment(int64_t t, int64_t kv_head, int64_t segment, float* out, float* maxima,
                      float* sums) const {
    const int64_t begin = segment * kKeySegment;
    AttentionArgs args{};
    args.queries = queries_ + (t * layer_.num_heads + kv_head * group_) * layer_.head_dim;
    args.query_stride = layer_.head_dim;
    args.num_queries = group_;
    args.keys = head_start(cache_.keys, kv_head);
    args.values = head_start(cache_.values, kv_head);
    args.kv_format = cache_.format;
    args.key_begin = begin;
    args.key_end = std::min(begin + kKeySegment, position_ + t + 1);
    args.head_dim = layer_.head_dim;
    args.scale = layer_.scale;
    args.out = out;
    args.out_stride = layer_.head_dim;
    args.maxima = maxima;
    args.sums = sums;
    kernels_.attention_segment(args);
  }

  void finish(const AttentionPart& part, int64_t t, int64_t head, const float* gate_source,
              float* out) const {
    const int64_t d = layer_.head_dim;
    const int64_t index = t * layer_.num_heads + head;
    kernels_.attention_finish(part, d, out + index * d);
    if (layer_.gated) {
      float gate[512];
      kernels_.sigmoid(gate_source + (2 * index + 1) * d, d, gate);
      kernels_.multiply(out + index * d, gate, d, out + index * d);
    }
  }

  void attend_by_group(const float* gate_source, float* out) {
    const int64_t part_floats = group_ * (layer_.head_dim + 2);
    float* memory = runtime_.scratch().floats(2 * part_floats * runtime_.pool().num_threads());
    runtime_.pool().parallel_for(num_tokens_ * layer_.num_kv_heads, [&](int64_t item, int thread) {
      const int64_t t = item / layer_.num_kv_heads;
      const int64_t kv_head = item % layer_.num_kv_heads;
      float* first = memory + 2 * part_floats * thread;
      float* other = first + part_floats;
      attend_segment(t, kv_head, 0, first, first + group_ * layer_.head_dim,
                     first + group_ * (layer_.head_dim + 1));
      const int64_t segments = num_segments(position_ + t + 1);
      for (int64_t s = 1; s < segments; ++s) {
        attend_segment(t, kv_head, s, other, other + group_ * layer_.head_dim,
                       other + group_ * (layer_.head_dim + 1));
        for (int64_t g = 0; g < group_; ++g) {
          merge(first, other, g);
        }
      }
      for (int64_t g = 0; g < group_; ++g) {
        finish(part(first, g), t, kv_head * group_ + g, gate_source, out);
      }
    });
  }

  void attend_by_segment(const float* gate_source, float* out, int64_t segments) {
    const int64_t part_floats = group_ * (layer_.head_dim + 2);
    const int64_t groups = num_tokens_ * layer_.num_kv_heads;
    float* memory = runtime_.scratch().floats(part_floats * groups * segments);
    runtime_.pool().parallel_for(groups * segments, [&](int64_t item, int) {
      const int64_t t = item / segments / layer_.num_kv_heads;
      const int64_t s = item % segments;
      if (s < num_segments(position_ + t + 1)) {
        float* p = memory + item * part_floats;
        attend_segment(t, item / segments % layer_.num_kv_heads, s, p, p + group_ * layer_.head_dim,
                       p + group_ * (layer_.head_dim + 1));
      }
    });
    runtime_.pool().parallel_for(groups * group_, [&](int64_t item, int) {
      const int64_t index = item / group_;
      const int64_t g = item % group_;
      const int64_t t = index / layer_.num_kv_heads;
      float* first = memory + index * segments * part_floats;
      for (int64_t s = 1; s < num_segments(position_ + t + 1); ++s) {
        merge(first, first + s * part_floats, g);
      }
      finish(part(first, g), t, index % layer_.num_kv_heads * group_ + g, gate_source, out);
    });
  }

  // Parts of a group: out [group, head_dim], maxima [group], sums [group].
  AttentionPart part(float* parts, int64_t g) const {
    const float* tail = parts + group_ * layer_.head_dim;
    return {parts + g * layer_.head_dim, tail[g], tail[group_ + g]};
  }

  void merge(float* into, float* from, int64_t g) const {
    AttentionPart result = part(into, g);
    kernels_.attention_merge(result, part(from, g), layer_.head_dim);
    float* tail = into + group_ * layer_.head_dim;
    tail[g] = result.maximum;
    tail[group_ + g] = result.sum;
  }

  Runtime& runtime_;
  const KernelTable& kernels_;
  const AttentionLayer& layer_;
  const KvCacheView& cache_;
  int64_t position_;
  int64_t num_tokens_;
  int64_t group_;  // query heads of a key/value head
  int64_t half_rotary_;
  float* queries_;
  float* cosines_;
  float* sines_;
};

}  // namespace

void attention(Runtime& runtime, const AttentionLayer& layer, const float* query, const float* key,
               const float* value, int64_t position, int64_t num_tokens, const KvCacheView& cache,
               float* out) {
  AttentionCall call(runtime, layer, cache, position, num_tokens);
  call.compute_angles();
  call.prepare_heads(query, key, value);
  call.attend(query, out);
}

}  // namespace sparseflow
