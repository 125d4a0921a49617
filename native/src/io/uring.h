// The rings of io_uring by plain system calls: entries that ask, entries that answer. One thread.
#pragma once

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#define SPARSEFLOW_HAS_URING 1

#include <linux/io_uring.h>

#include <cstddef>
#include <cstdint>

namespace sparseflow {

class Uring {
 public:
  // entries: operations that may be under way at once, at most 4096. Throws ConfigError naming the
  // errno if the kernel refuses.
  explicit Uring(unsigned entries);
  ~Uring();
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  // A cleared entry for one more operation, which the next enter() hands over. REQUIRES: fewer than
  // `entries` operations are under way.
  io_uring_sqe& next_operation() noexcept;

  // Hands over what was prepared and sleeps until at least one operation has ended. Returns 0 or an
  // errno; after EINTR, EAGAIN or EBUSY the call may be repeated.
  int enter() noexcept;

  // The next operation that has ended; false: none. user_data and res are as the kernel gave them.
  bool take_result(uint64_t* user_data, int32_t* result) noexcept;

 private:
  struct Mapping {
    void* memory = nullptr;
    size_t nbytes = 0;
  };

  void map(Mapping* mapping, size_t nbytes, int64_t offset);
  void close() noexcept;

  int fd_ = -1;
  unsigned prepared_ = 0;
  Mapping submissions_, completions_, entries_;
  uint32_t* sq_tail_ = nullptr;
  uint32_t sq_mask_ = 0;
  uint32_t* sq_array_ = nullptr;
  io_uring_sqe* sqes_ = nullptr;
  uint32_t* cq_head_ = nullptr;
  uint32_t* cq_tail_ = nullptr;
  uint32_t cq_mask_ = 0;
  io_uring_cqe* cqes_ = nullptr;
};

}  // namespace sparseflow

#endif
