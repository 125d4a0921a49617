#include "io/read_error.h"

#include <system_error>

#include "sparseflow/errors.h"

namespace sparseflow {

void throw_storage_error(const std::string& what, const std::string& path, int64_t offset,
                         int error_number) {
  throw StorageError(what + " " + path + " at byte " + std::to_string(offset) + ": " +
                         std::generic_category().message(error_number) + " (errno " +
                         std::to_string(error_number) + "); check the file and the disk",
                     path, offset, error_number);
}

}  // namespace sparseflow
