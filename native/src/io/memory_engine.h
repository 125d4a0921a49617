// File contents held in memory; a read is a copy that ends inside submit().
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "sparseflow/read_engine.h"

namespace sparseflow {

class MemoryEngine final : public ReadEngine {
 public:
  const char* name() const noexcept override { return "memory"; }
  int queue_depth() const noexcept override { return 1; }
  int open(const std::string& path) override;
  const std::string& path(int file) const override { return find(file).path; }
  int64_t file_bytes(int file) const override {
    return static_cast<int64_t>(find(file).bytes.size());
  }
  bool is_direct(int) const override { return false; }
  void submit(const ReadRequest& request) override;

 private:
  struct Contents {
    std::string path;
    std::vector<std::byte> bytes;
  };

  const Contents& find(int file) const;

  mutable std::mutex mutex_;
  std::deque<Contents> files_;  // grows only; elements stay where they are
};

}  // namespace sparseflow
