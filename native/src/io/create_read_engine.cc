#include "io/memory_engine.h"
#include "io/pread_engine.h"
#include "sparseflow/errors.h"

namespace sparseflow {

std::vector<std::string> read_engine_names() { return {"pread", "memory"}; }

std::shared_ptr<ReadEngine> create_read_engine(const std::string& name,
                                               const ReadEngineOptions& options) {
  if (options.queue_depth < 1 || options.queue_depth > 256) {
    throw ConfigError("queue_depth: " + std::to_string(options.queue_depth) + "; must be 1 to 256");
  }
  if (name == "pread") {
    const bool direct = options.direct_io;
    auto opener = [direct](const std::string& path) { return open_disk_file(path, direct); };
    return std::make_shared<PreadEngine>("pread", std::move(opener), options.queue_depth);
  }
  if (name == "memory") return std::make_shared<MemoryEngine>();
  throw ConfigError("read engine: unknown '" + name + "'; known: pread, memory");
}

}  // namespace sparseflow
