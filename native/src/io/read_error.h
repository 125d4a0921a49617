// One wording for everything that storage refuses.
#pragma once

#include <cstdint>
#include <string>

namespace sparseflow {

// "<what> <path> at byte <offset>: <strerror> (errno <n>); check the disk and run again"
[[noreturn]] void throw_storage_error(const std::string& what, const std::string& path,
                                      int64_t offset, int error_number);

}  // namespace sparseflow
