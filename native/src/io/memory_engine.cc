#include "io/memory_engine.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "io/plain_file.h"

namespace sparseflow {

int MemoryEngine::open(const std::string& path) {
  const PlainFile file(path);
  std::vector<std::byte> bytes(static_cast<size_t>(file.bytes()));
  file.read(bytes.data(), file.bytes(), 0);
  const std::lock_guard lock(mutex_);
  files_.push_back({path, std::move(bytes)});
  return static_cast<int>(files_.size()) - 1;
}

const MemoryEngine::Contents& MemoryEngine::find(int file) const {
  const std::lock_guard lock(mutex_);
  return files_.at(static_cast<size_t>(file));
}

void MemoryEngine::submit(const ReadRequest& request) {
  const Contents& contents = find(request.file);
  const auto total = static_cast<int64_t>(contents.bytes.size());
  ReadResult result{0, 0};
  if (request.offset > total || request.nbytes > total - request.offset) {
    result = {ENODATA, total};
  } else {
    std::memcpy(request.buffer, contents.bytes.data() + request.offset,
                static_cast<size_t>(request.nbytes));
  }
  request.sink->read_done(request, result);
}

}  // namespace sparseflow
