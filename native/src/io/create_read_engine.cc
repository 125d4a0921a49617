#include "io/memory_engine.h"
#include "io/pread_engine.h"
#include "io/uring_engine.h"
#include "sparseflow/errors.h"

namespace sparseflow {

namespace {

std::shared_ptr<ReadEngine> create_pread_engine(const ReadEngineOptions& options) {
  const bool direct = options.direct_io;
  auto opener = [direct](const std::string& path) { return open_disk_file(path, direct); };
  return std::make_shared<PreadEngine>("pread", std::move(opener), options.queue_depth);
}

}  // namespace

std::vector<std::string> read_engine_names() {
  if (has_uring()) return {"pread", "io_uring", "memory"};
  return {"pread", "memory"};
}

std::shared_ptr<ReadEngine> create_read_engine(const std::string& name,
                                               const ReadEngineOptions& options) {
  if (options.queue_depth < 1 || options.queue_depth > 256) {
    throw ConfigError("queue_depth: " + std::to_string(options.queue_depth) + "; must be 1 to 256");
  }
  // Threads also check what they have read, side by side (docs/experiments.md, "Read engines").
  if (name == "pread" || name == "auto") return create_pread_engine(options);
  if (name == "io_uring") return create_uring_engine(options);
  if (name == "memory") return std::make_shared<MemoryEngine>();
  std::string known = "auto";
  for (const std::string& other : read_engine_names()) known += ", " + other;
  throw ConfigError("read engine: unknown '" + name + "'; known: " + known);
}

}  // namespace sparseflow
