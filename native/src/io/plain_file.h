// A regular file opened for buffered reading, for headers and checks: small, rare reads on the
// calling thread.
#pragma once

#include <cstdint>
#include <string>

namespace sparseflow {

// Opens a regular file read-only and returns its descriptor; flags are added to O_RDONLY |
// O_CLOEXEC. Throws StorageError, also for a directory or a device.
int open_regular_file(const std::string& path, int flags, int64_t* file_bytes);

class PlainFile {
 public:
  explicit PlainFile(const std::string& path);  // throws StorageError
  ~PlainFile();
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;

  int64_t bytes() const noexcept { return bytes_; }

  // Fills buffer completely. Throws StorageError, also if the file ends first.
  void read(void* buffer, int64_t nbytes, int64_t offset) const;

 private:
  std::string path_;
  int64_t bytes_;
  int fd_;
};

}  // namespace sparseflow
