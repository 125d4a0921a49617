#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "sparseflow/errors.h"
#include "sparseflow/ops.h"

namespace sparseflow {
namespace {

struct Candidate {
  float logit;
  int32_t id;
};

bool comes_first(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Each id once, however often it occurs: first the repetition penalty, then, for ids after the
// prompt, the presence penalty.
void apply_penalties(std::vector<float>& logits, std::span<const int32_t> history,
                     int64_t num_prompt, const SampleParams& params) {
  if (params.repetition_penalty == 1.0F && params.presence_penalty == 0.0F) {
    return;
  }
  std::vector<uint8_t> seen(logits.size(), 0);  // bit 0: anywhere, bit 1: after the prompt
  for (size_t i = 0; i < history.size(); ++i) {
    const int32_t id = history[i];
    if (id >= 0 && static_cast<size_t>(id) < seen.size()) {
      seen[static_cast<size_t>(id)] |= static_cast<int64_t>(i) < num_prompt ? 1 : 3;
    }
  }
  for (size_t id = 0; id < logits.size(); ++id) {
    float& logit = logits[id];
    if ((seen[id] & 1) != 0 && params.repetition_penalty != 1.0F) {
      logit = logit < 0.0F ? logit * params.repetition_penalty : logit / params.repetition_penalty;
    }
    if ((seen[id] & 2) != 0) {
      logit -= params.presence_penalty;
    }
  }
}

int32_t largest(const std::vector<float>& logits) {
  size_t best = 0;
  for (size_t id = 1; id < logits.size(); ++id) {
    if (logits[id] > logits[best]) {
      best = id;
    }
  }
  return static_cast<int32_t>(best);
}

// Ascending with decreasing logits; zeros of both signs are equal.
uint32_t sort_key(const Candidate& candidate) {
  const auto bits = std::bit_cast<uint32_t>(candidate.logit + 0.0F);
  return (bits & 0x80000000U) != 0 ? bits : ~bits & 0x7FFFFFFFU;
}

// Stable radix sort by decreasing logit: candidates come in by ascending id, so ties stay with the
// lower id first.
void sort_by_logit(std::vector<Candidate>& candidates) {
  constexpr int kBits = 11;
  constexpr uint32_t kMask = (1U << kBits) - 1;
  std::vector<Candidate> sorted(candidates.size());
  for (int shift = 0; shift < 32; shift += kBits) {
    std::array<uint32_t, kMask + 2> begin{};
    for (const Candidate& candidate : candidates) {
      ++begin[((sort_key(candidate) >> shift) & kMask) + 1];
    }
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    for (const Candidate& candidate : candidates) {
      sorted[begin[(sort_key(candidate) >> shift) & kMask]++] = candidate;
    }
    candidates.swap(sorted);
  }
}

// The candidates after temperature and top-k, in decreasing order.
std::vector<Candidate> ranked(const std::vector<float>& logits, const SampleParams& params) {
  std::vector<Candidate> candidates(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    candidates[id] = {logits[id] / params.temperature, static_cast<int32_t>(id)};
  }
  const auto count = static_cast<int64_t>(candidates.size());
  if (params.top_k > 0 && params.top_k < count) {
    std::partial_sort(candidates.begin(), candidates.begin() + params.top_k, candidates.end(),
                      comes_first);
    candidates.resize(static_cast<size_t>(params.top_k));
  } else {
    sort_by_logit(candidates);
  }
  return candidates;
}

// exp(l - largest l), decreasing.
std::vector<float> weights_of(const KernelTable& kernels,
                              const std::vector<Candidate>& candidates) {
  std::vector<float> weights(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    weights[i] = candidates[i].logit - candidates[0].logit;
  }
  kernels.exp(weights.data(), static_cast<int64_t>(weights.size()), weights.data());
  return weights;
}

double sum_of(std::span<const float> weights) {
  double sum = 0;
  for (const float w : weights) {
    sum += static_cast<double>(w);
  }
  return sum;
}

// How many of the leading weights top-p and then min-p keep; at least one.
size_t num_kept(std::span<const float> weights, const SampleParams& params) {
  size_t kept = weights.size();
  if (params.top_p < 1.0F) {
    const double wanted = static_cast<double>(params.top_p) * sum_of(weights);
    double sum = 0;
    for (kept = 0; kept < weights.size();) {
      sum += static_cast<double>(weights[kept++]);
      if (sum >= wanted) {
        break;
      }
    }
  }
  while (kept > 1 && weights[kept - 1] < params.min_p) {
    --kept;
  }
  return kept;
}

}  // namespace

int32_t sample(Runtime& runtime, std::span<const float> logits, std::span<const int32_t> history,
               int64_t num_prompt, const SampleParams& params, uint64_t position,
               int64_t num_valid) {
  std::vector<float> values(logits.begin(), logits.begin() + num_valid);
  if (!is_finite(values.data(), num_valid)) {
    throw ConfigError("logits of position " + std::to_string(position) +
                      " are not finite: nothing can be sampled from them");
  }
  apply_penalties(values, history, num_prompt, params);
  if (params.temperature == 0.0F) {
    return largest(values);
  }
  const std::vector<Candidate> candidates = ranked(values, params);
  const std::vector<float> weights = weights_of(runtime.kernels(), candidates);
  const std::span<const float> kept = std::span(weights).first(num_kept(weights, params));
  const double target = philox_uniform(params.seed, position) * sum_of(kept);
  double sum = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    sum += static_cast<double>(kept[i]);
    if (sum > target) {
      return candidates[i].id;
    }
  }
  return candidates[kept.size() - 1].id;
}

}  // namespace sparseflow
