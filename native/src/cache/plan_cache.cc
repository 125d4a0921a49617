#include <algorithm>

#include "sparseflow/errors.h"
#include "sparseflow/expert_cache.h"

namespace sparseflow {
namespace {

constexpr int64_t kMinLease =
    8;  // where there is room: prefill reads half a lease while the other half multiplies

int64_t wanted_lease_of(const CacheRequest& r) noexcept {
  return std::min(r.num_experts, std::max(kMinLease, 2 * r.num_experts_per_tok));
}

}  // namespace

CacheLayout split_by_layer(const CacheRequest& r, int64_t kept) {
  CacheLayout layout{};
  layout.slot_bytes = r.blob_bytes;
  layout.queue_depth = r.queue_depth;
  layout.is_split_by_layer = true;
  layout.max_lease = wanted_lease_of(r);
  layout.num_transient = layout.max_lease + r.queue_depth;
  layout.num_slots = kept + layout.num_transient;
  for (int64_t layer = 0; layer < r.num_layers; ++layer) {
    const int64_t share = kept / r.num_layers + (layer < kept % r.num_layers ? 1 : 0);
    layout.layer_capacity.push_back(std::min(share, r.num_experts));
  }
  return layout;
}

CacheLayout plan_cache(const CacheRequest& r) {
  CacheLayout layout{};
  layout.slot_bytes = r.blob_bytes;
  layout.queue_depth = r.queue_depth;
  const int64_t all = r.num_layers * r.num_experts;
  layout.num_slots = std::min(r.capacity_bytes / r.blob_bytes, all);
  if (layout.num_slots < std::min(kMinSlots, all)) {
    const int64_t needed = std::min(kMinSlots, all) * r.blob_bytes;
    throw BudgetError("expert cache of " + std::to_string(r.capacity_bytes) +
                          " bytes: " + std::to_string(std::min(kMinSlots, all)) + " experts of " +
                          std::to_string(r.blob_bytes) + " bytes need " + std::to_string(needed) +
                          "; raise --ram or --cache",
                      needed, r.capacity_bytes);
  }
  const int64_t wanted_transient = wanted_lease_of(r) + r.queue_depth;
  layout.is_split_by_layer = true;
  if (layout.num_slots == all) {
    layout.max_lease = r.num_experts;
    layout.layer_capacity.assign(static_cast<size_t>(r.num_layers), r.num_experts);
    return layout;
  }
  const int64_t kept = layout.num_slots - wanted_transient;
  if (kept >= r.num_layers * r.num_experts_per_tok) return split_by_layer(r, kept);
  // Too small to keep a token's experts of every layer. Half of the slots stay transient, so that
  // reads overlap.
  layout.is_split_by_layer = false;
  layout.num_transient = std::min(wanted_transient, (layout.num_slots + 1) / 2);
  layout.queue_depth = std::max<int64_t>(1, std::min(r.queue_depth, layout.num_transient / 3));
  layout.max_lease = std::max<int64_t>(1, layout.num_transient - layout.queue_depth);
  layout.layer_capacity = {layout.num_slots - layout.num_transient};
  return layout;
}

}  // namespace sparseflow
