// Threads that each read one request at a time: the portable engine, and the measure for any other.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "io/positional_file.h"

namespace sparseflow {

class PreadEngine final : public ReadEngine {
 public:
  // REQUIRES: num_threads >= 1, which is the queue depth.
  PreadEngine(const char* name, FileOpener opener, int num_threads);
  ~PreadEngine() override;

  const char* name() const noexcept override { return name_; }
  int queue_depth() const noexcept override { return static_cast<int>(threads_.size()); }
  int open(const std::string& path) override;
  const std::string& path(int file) const override { return find(file).path; }
  int64_t file_bytes(int file) const override { return find(file).file->bytes(); }
  bool is_direct(int file) const override { return find(file).file->is_direct(); }
  void submit(const ReadRequest& request) override;

 private:
  struct OpenFile {
    std::string path;
    std::unique_ptr<PositionalFile> file;
  };

  const OpenFile& find(int file) const;
  void serve() noexcept;

  const char* name_;
  FileOpener opener_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::deque<OpenFile> files_;  // grows only; elements stay where they are
  std::deque<ReadRequest> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sparseflow
