#include "io/plain_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "io/read_error.h"

namespace sparseflow {

int open_regular_file(const std::string& path, int flags, int64_t* file_bytes) {
  // O_NONBLOCK: opening a FIFO must not hang; it has no effect on regular files.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
  if (fd < 0) throw_storage_error("cannot open", path, 0, errno);
  struct stat info{};
  const int status = ::fstat(fd, &info);
  if (status != 0 || !S_ISREG(info.st_mode)) {
    const int error = status != 0 ? errno : EINVAL;
    ::close(fd);
    throw_storage_error("not a readable regular file:", path, 0, error);
  }
  *file_bytes = info.st_size;
  return fd;
}

PlainFile::PlainFile(const std::string& path)
    : path_(path), bytes_(0), fd_(open_regular_file(path, 0, &bytes_)) {}

PlainFile::~PlainFile() { ::close(fd_); }

void PlainFile::read(void* buffer, int64_t nbytes, int64_t offset) const {
  int64_t done = 0;
  while (done < nbytes) {
    const ssize_t count = ::pread(fd_, static_cast<char*>(buffer) + done,
                                  static_cast<size_t>(nbytes - done), offset + done);
    if (count > 0) {
      done += count;
    } else if (count == 0) {
      throw_storage_error("file ends early:", path_, offset + done, ENODATA);
    } else if (errno != EINTR) {
      throw_storage_error("cannot read", path_, offset + done, errno);
    }
  }
}

}  // namespace sparseflow
