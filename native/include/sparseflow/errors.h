// What native code throws. bindings/errors.cc turns each into the Python class of the same name.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace sparseflow {

struct ConfigError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ContainerError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct UnsupportedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct BudgetError : std::runtime_error {
  BudgetError(const std::string& message, int64_t needed, int64_t available)
      : std::runtime_error(message), needed_bytes(needed), available_bytes(available) {}
  int64_t needed_bytes;
  int64_t available_bytes;
};

struct StorageError : std::runtime_error {
  StorageError(const std::string& message, std::string file, int64_t at, int error)
      : std::runtime_error(message), path(std::move(file)), offset(at), error_number(error) {}
  std::string path;
  int64_t offset;
  int error_number;
};

}  // namespace sparseflow
