#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "sparseflow/errors.h"
#include "sparseflow/expert_cache.h"

namespace sparseflow {

std::byte* map_aligned(int64_t nbytes) {
  constexpr auto kAlign = static_cast<size_t>(Arena::kHugePage);
  const auto size = static_cast<size_t>(round_up(nbytes, kSfiAlignment));
  void* mapped =
      ::mmap(nullptr, size + kAlign, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw BudgetError("the system refuses " + std::to_string(nbytes) +
                          " bytes of memory for experts (errno " + std::to_string(errno) +
                          "); lower --ram or --cache",
                      nbytes, 0);
  }
  const auto start = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = (start + kAlign - 1) / kAlign * kAlign;
  if (aligned != start) ::munmap(mapped, aligned - start);
  if (const uintptr_t tail = start + kAlign - aligned; tail != 0) {
    ::munmap(reinterpret_cast<void*>(aligned + size), tail);
  }
  // Only whole huge pages: a partial one at the end would take more than was asked for.
  if (const size_t whole = size / kAlign * kAlign; whole != 0) {
    (void)::madvise(reinterpret_cast<void*>(aligned), whole, MADV_HUGEPAGE);
  }
  return reinterpret_cast<std::byte*>(aligned);
}

void unmap_aligned(std::byte* memory, int64_t nbytes) noexcept {
  ::munmap(memory, static_cast<size_t>(round_up(nbytes, kSfiAlignment)));
}

Arena::Arena(int64_t num_slots, int64_t slot_bytes)
    : num_slots_(num_slots),
      slot_bytes_(slot_bytes),
      slots_per_segment_(std::max<int64_t>(
          1, std::min(kSegmentBytes, num_slots * slot_bytes / kFewestSegments) / slot_bytes)) {
  const int64_t num_segments = (num_slots + slots_per_segment_ - 1) / slots_per_segment_;
  segments_.reserve(static_cast<size_t>(num_segments));
  try {
    for (size_t i = 0; i < static_cast<size_t>(num_segments); ++i) {
      segments_.push_back(map_aligned(segment_bytes(i)));
    }
  } catch (...) {
    for (size_t i = 0; i < segments_.size(); ++i) unmap_aligned(segments_[i], segment_bytes(i));
    throw;
  }
}

Arena::~Arena() {
  for (size_t i = 0; i < segments_.size(); ++i) unmap_aligned(segments_[i], segment_bytes(i));
}

void Arena::give_back(int64_t segment) noexcept {
  const auto at = static_cast<size_t>(segment);
  const auto size = static_cast<size_t>(round_up(segment_bytes(at), kSfiAlignment));
  (void)::madvise(segments_[at], size, MADV_DONTNEED);
}

int64_t Arena::segment_bytes(size_t segment) const noexcept {
  return num_slots_in(static_cast<int64_t>(segment)) * slot_bytes_;
}

}  // namespace sparseflow
