// What engines read from: one system call's worth of reading, and what makes a whole read of
// several.
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

// How far a request has come.
struct ReadProgress {
  int64_t done = 0;  // the next system call begins so far behind the request's offset
  int stalls = 0;
  ReadResult result{0, 0};

  // Takes in what a system call gave: bytes, 0 at the end of the file, or -errno. Returns whether
  // the read has ended, with `result`; otherwise another call must follow. An interrupted call is
  // repeated; a short direct read goes on from the aligned-down offset.
  bool advance(const ReadRequest& request, int64_t count, bool is_direct) noexcept;
};

// Reads all of request from file.
ReadResult read_fully(PositionalFile& file, const ReadRequest& request) noexcept;

}  // namespace sparseflow
