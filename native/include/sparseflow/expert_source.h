// Where a layer computation gets its experts from: all of them in memory (ResidentSource) or leased
// from a cache (StreamingSource). Either gives the same bytes, so either gives the same output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "sparseflow/read_engine.h"
#include "sparseflow/sfi_file.h"

namespace sparseflow {

// One expert of a lease; the meaning of slot is the owner's.
struct LeasedExpert {
  int32_t expert;
  int32_t slot;
  const std::byte* blob;  // valid from delivery on
  bool is_delivered;
};

class ExpertLease;

// Who hands out leases and takes them back. Thread-safe.
class LeaseOwner {
 protected:
  friend class ExpertLease;
  ~LeaseOwner() = default;

  // Marks experts that have become ready as delivered; if none has and wait is set, sleeps until
  // one has. Throws what the read of an expert of this lease threw.
  virtual void deliver(std::span<LeasedExpert> experts, bool wait) = 0;
  virtual void release(int32_t layer, std::vector<LeasedExpert>&& experts) noexcept = 0;
};

// The right to use the bytes of some experts of one layer, until it dies. Move-only; dying never
// throws. Experts are reserved from the start and delivered one by one, in whatever order their
// reads end. REQUIRES: the owner outlives the lease; one thread at a time.
class ExpertLease {
 public:
  ExpertLease() noexcept = default;
  ExpertLease(LeaseOwner* owner, int32_t layer, std::vector<LeasedExpert>&& experts) noexcept
      : owner_(owner), layer_(layer), experts_(std::move(experts)) {}
  ExpertLease(ExpertLease&& other) noexcept { swap(other); }
  ExpertLease& operator=(ExpertLease&& other) noexcept {
    ExpertLease(std::move(other)).swap(*this);
    return *this;
  }
  ~ExpertLease() {
    if (owner_ != nullptr) owner_->release(layer_, std::move(experts_));
  }

  explicit operator bool() const noexcept { return owner_ != nullptr; }
  int size() const noexcept { return static_cast<int>(experts_.size()); }
  int32_t expert(int i) const noexcept { return experts_[static_cast<size_t>(i)].expert; }
  bool is_delivered(int i) const noexcept { return experts_[static_cast<size_t>(i)].is_delivered; }
  // REQUIRES: is_delivered(i).
  const std::byte* blob(int i) const noexcept { return experts_[static_cast<size_t>(i)].blob; }

  // Looks which experts have become ready. Throws StorageError or ContainerError if a read of this
  // lease failed.
  void poll() { owner_->deliver(experts_, false); }
  // The same, but sleeps until at least one more is delivered. REQUIRES: not all are.
  void wait_any() { owner_->deliver(experts_, true); }

 private:
  void swap(ExpertLease& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(layer_, other.layer_);
    experts_.swap(other.experts_);
  }

  LeaseOwner* owner_ = nullptr;
  int32_t layer_ = 0;
  std::vector<LeasedExpert> experts_;
};

// What a store did since it was opened. Counters only grow.
struct ExpertCounters {
  int64_t hits = 0;       // experts acquired that were in memory or already on their way
  int64_t misses = 0;     // experts acquired that had to be read
  int64_t evictions = 0;  // experts given up for another
  int64_t reads = 0;      // reads that ended, well or not, loading included
  int64_t failed_reads = 0;
  int64_t bytes_read = 0;
  double read_wait_seconds = 0;    // computation stood still for a read
  double wait_cpu_seconds = 0;     // CPU time of the whole process meanwhile
  double read_busy_seconds = 0;    // at least one read was under way
  double read_flight_seconds = 0;  // sum over all reads of the time that each was under way
  int64_t preloaded = 0;           // experts whose read began before anyone asked, for earlier runs
  int64_t ahead_reads = 0;         // reads begun because a layer will probably ask
  int64_t ahead_hits = 0;          // of them, asked for in time
  int64_t shrinks = 0;             // the capacity was lowered while the store was open
  int64_t grows = 0;               // and raised again
};

// Thread-safe, except that one layer computation at a time uses a source (moe_forward sees to it).
class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  virtual int64_t num_layers() const noexcept = 0;
  virtual const SfiGeometry& geometry() const noexcept = 0;  // of every layer but for `layer`

  // The most experts that one lease can hold now.
  virtual int64_t max_lease() const noexcept = 0;

  // Tells what the router chose: topk_ids [num_tokens, k], ascending in each row. Before the first
  // acquire of a layer.
  virtual void observe(int32_t layer, std::span<const int32_t> topk_ids, int64_t k) = 0;

  // Advice: the layer will probably choose these experts next.
  virtual void read_ahead(int32_t layer, std::span<const int32_t> experts) = 0;

  // Advice: a prompt will need these experts (ascending) of a later layer. Worth finding out only
  // where wants_advice says so.
  virtual bool wants_advice() const = 0;
  virtual void prefetch(int32_t layer, std::span<const int32_t> experts) = 0;

  // Leases all of experts (ascending, at most max_lease) or throws; sleeps until there is room. If
  // max_lease has been lowered meanwhile, the lease holds only so many, the first; its size tells.
  virtual ExpertLease acquire(int32_t layer, std::span<const int32_t> experts) = 0;
  // The same, but gives an empty lease where it would have to sleep.
  virtual ExpertLease try_acquire(int32_t layer, std::span<const int32_t> experts) = 0;

  virtual int64_t active_leases() const noexcept = 0;
  virtual ExpertCounters counters() const = 0;

  std::mutex& compute_mutex() noexcept { return compute_mutex_; }

 private:
  std::mutex compute_mutex_;
};

// Opens the files of all layers, checks their headers and that their geometries agree. Throws as
// read_sfi_header does.
struct ExpertFiles {
  std::vector<std::string> paths;
  std::vector<SfiHeader> headers;  // [num_layers], headers[i].geometry.layer == i
};
ExpertFiles open_expert_files(const std::vector<std::string>& paths);

}  // namespace sparseflow
