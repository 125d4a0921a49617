#include "io/positional_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "io/plain_file.h"

namespace sparseflow {
namespace {

constexpr int kMaxStalls = 16;  // short reads in a row that did not even finish one alignment unit

// Whether the file system says that it takes direct reads at kDirectAlignment. A kernel that cannot
// say (before 6.1) is tried.
bool may_read_direct(int fd) noexcept {
#ifdef STATX_DIOALIGN
  struct statx info{};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    const auto fits = [](uint32_t alignment) {
      return alignment != 0 && kDirectAlignment % alignment == 0;
    };
    return fits(info.stx_dio_mem_align) && fits(info.stx_dio_offset_align);
  }
#else
  (void)fd;
#endif
  return true;
}

class DiskFile final : public PositionalFile {
 public:
  DiskFile(const std::string& path, bool direct) : fd_(open_regular_file(path, 0, &bytes_)) {
    if (direct && may_read_direct(fd_)) {
      const int flags = ::fcntl(fd_, F_GETFL);
      is_direct_ = flags >= 0 && ::fcntl(fd_, F_SETFL, flags | O_DIRECT) == 0;
    }
  }
  ~DiskFile() override { ::close(fd_); }

  int64_t bytes() const noexcept override { return bytes_; }
  bool is_direct() const noexcept override { return is_direct_.load(std::memory_order_relaxed); }

  int64_t read_at(void* buffer, int64_t nbytes, int64_t offset) noexcept override {
    const ssize_t count = ::pread(fd_, buffer, static_cast<size_t>(nbytes), offset);
    if (count >= 0) return count;
    if (errno != EINVAL || !is_direct()) return -errno;
    // The file system took the flag and refuses the read. Other threads get here too; clearing
    // twice is harmless.
    const int flags = ::fcntl(fd_, F_GETFL);
    if (flags < 0 || ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT) != 0) return -EINVAL;
    is_direct_.store(false, std::memory_order_relaxed);
    const ssize_t again = ::pread(fd_, buffer, static_cast<size_t>(nbytes), offset);
    return again >= 0 ? again : -errno;
  }

 private:
  int64_t bytes_ = 0;
  int fd_;
  std::atomic<bool> is_direct_{false};
};

}  // namespace

std::unique_ptr<PositionalFile> open_disk_file(const std::string& path, bool direct) {
  return std::make_unique<DiskFile>(path, direct);
}

ReadResult read_fully(PositionalFile& file, const ReadRequest& request) noexcept {
  int64_t done = 0;
  int stalls = 0;
  while (done < request.nbytes) {
    const int64_t at = request.offset + done;
    const int64_t count =
        file.read_at(static_cast<char*>(request.buffer) + done, request.nbytes - done, at);
    if (count == -EINTR) continue;
    if (count < 0) return {static_cast<int>(-count), at};
    if (count == 0) return {ENODATA, at};
    int64_t next = done + count;
    if (next < request.nbytes && file.is_direct()) next -= next % kDirectAlignment;
    stalls = next > done ? 0 : stalls + 1;
    if (stalls == kMaxStalls) return {EIO, at};
    done = next;
  }
  return {0, 0};
}

}  // namespace sparseflow
