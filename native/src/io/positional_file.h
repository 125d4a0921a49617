// What a pread engine reads from: one system call's worth of reading, and the loop that makes it a
// whole read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "sparseflow/read_engine.h"

namespace sparseflow {

// Thread-safe.
class PositionalFile {
 public:
  virtual ~PositionalFile() = default;
  virtual int64_t bytes() const noexcept = 0;
  virtual bool is_direct() const noexcept = 0;
  // Bytes read, 0 at the end of the file, or -errno.
  virtual int64_t read_at(void* buffer, int64_t nbytes, int64_t offset) noexcept = 0;
};

using FileOpener = std::function<std::unique_ptr<PositionalFile>(const std::string& path)>;

// Opens with O_DIRECT where direct is wanted and the file system takes kDirectAlignment (statx);
// otherwise, and from the first read that is refused with EINVAL on, buffered. Throws StorageError.
std::unique_ptr<PositionalFile> open_disk_file(const std::string& path, bool direct);

// Reads all of request from file. A short direct read resumes from the aligned-down offset.
ReadResult read_fully(PositionalFile& file, const ReadRequest& request) noexcept;

}  // namespace sparseflow
