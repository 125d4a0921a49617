// A regular file on disk, read past the page cache where the file system allows it.
#pragma once

#include <atomic>
#include <string>

#include "io/positional_file.h"

namespace sparseflow {

class DiskFile final : public PositionalFile {
 public:
  // Throws StorageError.
  DiskFile(const std::string& path, bool direct);
  ~DiskFile() override;
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  int fd() const noexcept { return fd_; }
  int64_t bytes() const noexcept override { return bytes_; }
  bool is_direct() const noexcept override { return is_direct_.load(std::memory_order_relaxed); }
  int64_t read_at(void* buffer, int64_t nbytes, int64_t offset) noexcept override;

  // Whether a read that ended with this error is worth repeating: the file system took the flag for
  // direct reads and refuses the read itself, so that from now on the file is read buffered.
  bool accept_refusal(int error_number) noexcept;

 private:
  int64_t bytes_ = 0;
  int fd_;
  std::atomic<bool> is_direct_{false};
};

}  // namespace sparseflow
