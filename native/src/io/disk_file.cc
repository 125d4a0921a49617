#include "io/disk_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "io/plain_file.h"

namespace sparseflow {
namespace {

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

}  // namespace

DiskFile::DiskFile(const std::string& path, bool direct)
    : fd_(open_regular_file(path, 0, &bytes_)) {
  if (direct && may_read_direct(fd_)) {
    const int flags = ::fcntl(fd_, F_GETFL);
    is_direct_ = flags >= 0 && ::fcntl(fd_, F_SETFL, flags | O_DIRECT) == 0;
  }
}

DiskFile::~DiskFile() { ::close(fd_); }

int64_t DiskFile::read_at(void* buffer, int64_t nbytes, int64_t offset) noexcept {
  const ssize_t count = ::pread(fd_, buffer, static_cast<size_t>(nbytes), offset);
  if (count >= 0) return count;
  const int error_number = errno;
  if (!accept_refusal(error_number)) return -error_number;
  const ssize_t again = ::pread(fd_, buffer, static_cast<size_t>(nbytes), offset);
  return again >= 0 ? again : -errno;
}

// Other threads get here too; clearing twice is harmless.
bool DiskFile::accept_refusal(int error_number) noexcept {
  if (error_number != EINVAL || !is_direct()) return false;
  const int flags = ::fcntl(fd_, F_GETFL);
  if (flags < 0 || ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT) != 0) return false;
  is_direct_.store(false, std::memory_order_relaxed);
  return true;
}

std::unique_ptr<PositionalFile> open_disk_file(const std::string& path, bool direct) {
  return std::make_unique<DiskFile>(path, direct);
}

}  // namespace sparseflow
