#include "io/uring.h"

#ifdef SPARSEFLOW_HAS_URING

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "sparseflow/errors.h"

namespace sparseflow {
namespace {

[[noreturn]] void throw_refused(const char* what, int error_number) {
  throw ConfigError(std::string("read engine io_uring: the system refuses ") + what + ": " +
                    std::generic_category().message(error_number) + " (errno " +
                    std::to_string(error_number) + "); choose pread");
}

template <typename T>
T* at(void* memory, uint32_t offset) noexcept {
  return reinterpret_cast<T*>(static_cast<char*>(memory) + offset);
}

// Plain reads came with Linux 5.6, the question itself too.
bool has_plain_read(int fd) noexcept {
  constexpr unsigned kOps = IORING_OP_READ + 1;
  alignas(io_uring_probe) char memory[sizeof(io_uring_probe) + kOps * sizeof(io_uring_probe_op)];
  std::memset(memory, 0, sizeof(memory));
  auto* probe = reinterpret_cast<io_uring_probe*>(memory);
  if (::syscall(SYS_io_uring_register, fd, IORING_REGISTER_PROBE, probe, kOps) != 0) return false;
  return probe->ops_len > IORING_OP_READ &&
         (probe->ops[IORING_OP_READ].flags & IO_URING_OP_SUPPORTED) != 0;
}

}  // namespace

Uring::Uring(unsigned entries) {
  io_uring_params params{};
  fd_ = static_cast<int>(::syscall(SYS_io_uring_setup, entries, &params));
  if (fd_ < 0) throw_refused("io_uring_setup", errno);
  try {
    if (!has_plain_read(fd_)) throw_refused("IORING_OP_READ", EOPNOTSUPP);
    size_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
    const size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    const bool is_single = (params.features & IORING_FEAT_SINGLE_MMAP) != 0;
    if (is_single) sq_bytes = std::max(sq_bytes, cq_bytes);
    map(&submissions_, sq_bytes, IORING_OFF_SQ_RING);
    if (!is_single) map(&completions_, cq_bytes, IORING_OFF_CQ_RING);
    map(&entries_, params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
  } catch (...) {
    close();
    throw;
  }
  void* sq = submissions_.memory;
  void* cq = completions_.memory != nullptr ? completions_.memory : sq;
  sq_tail_ = at<uint32_t>(sq, params.sq_off.tail);
  sq_mask_ = *at<uint32_t>(sq, params.sq_off.ring_mask);
  sq_array_ = at<uint32_t>(sq, params.sq_off.array);
  sqes_ = static_cast<io_uring_sqe*>(entries_.memory);
  cq_head_ = at<uint32_t>(cq, params.cq_off.head);
  cq_tail_ = at<uint32_t>(cq, params.cq_off.tail);
  cq_mask_ = *at<uint32_t>(cq, params.cq_off.ring_mask);
  cqes_ = at<io_uring_cqe>(cq, params.cq_off.cqes);
}

Uring::~Uring() { close(); }

void Uring::map(Mapping* mapping, size_t nbytes, int64_t offset) {
  void* memory = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_,
                        static_cast<off_t>(offset));
  if (memory == MAP_FAILED) throw_refused("to map its rings", errno);
  *mapping = {memory, nbytes};
}

void Uring::close() noexcept {
  for (const Mapping& mapping : {submissions_, completions_, entries_}) {
    if (mapping.memory != nullptr) ::munmap(mapping.memory, mapping.nbytes);
  }
  ::close(fd_);
}

io_uring_sqe& Uring::next_operation() noexcept {
  const uint32_t tail = *sq_tail_;  // only this thread writes it
  const uint32_t index = tail & sq_mask_;
  io_uring_sqe& sqe = sqes_[index];
  std::memset(&sqe, 0, sizeof(sqe));
  sq_array_[index] = index;
  // The kernel looks at the entry only in enter(), so that it may still be filled in.
  std::atomic_ref(*sq_tail_).store(tail + 1, std::memory_order_release);
  ++prepared_;
  return sqe;
}

int Uring::enter() noexcept {
  const long taken =
      ::syscall(SYS_io_uring_enter, fd_, prepared_, 1U, IORING_ENTER_GETEVENTS, nullptr, size_t{0});
  if (taken < 0) return errno;
  prepared_ -= std::min(prepared_, static_cast<unsigned>(taken));
  return 0;
}

bool Uring::take_result(uint64_t* user_data, int32_t* result) noexcept {
  const uint32_t head = *cq_head_;  // only this thread writes it
  if (head == std::atomic_ref(*cq_tail_).load(std::memory_order_acquire)) return false;
  const io_uring_cqe& cqe = cqes_[head & cq_mask_];
  *user_data = cqe.user_data;
  *result = cqe.res;
  std::atomic_ref(*cq_head_).store(head + 1, std::memory_order_release);
  return true;
}

}  // namespace sparseflow

#endif
