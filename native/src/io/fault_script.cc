#include "io/fault_script.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "io/pread_engine.h"
#include "io/uring_engine.h"
#include "sparseflow/errors.h"

namespace sparseflow {
namespace {

class FaultyFile final : public PositionalFile {
 public:
  FaultyFile(std::unique_ptr<PositionalFile> file, std::shared_ptr<FaultScript> script)
      : file_(std::move(file)), script_(std::move(script)) {}

  int64_t bytes() const noexcept override { return file_->bytes(); }
  bool is_direct() const noexcept override { return file_->is_direct(); }

  int64_t read_at(void* buffer, int64_t nbytes, int64_t offset) noexcept override {
    const FaultScript::Fault fault = script_->next();
    const int64_t count = fault.error_number != 0 ? 0 : file_->read_at(buffer, nbytes, offset);
    return FaultScript::apply(fault, buffer, count);
  }

 private:
  std::unique_ptr<PositionalFile> file_;
  std::shared_ptr<FaultScript> script_;
};

}  // namespace

// The whole read is done and its length lied about: a direct read could not be asked for an odd
// length.
int64_t FaultScript::apply(const Fault& fault, void* buffer, int64_t count) noexcept {
  std::this_thread::sleep_for(std::chrono::microseconds(fault.delay_microseconds));
  if (fault.error_number != 0) return -fault.error_number;
  if (count > 0 && fault.flips_bit) *static_cast<uint8_t*>(buffer) ^= 1;
  return fault.short_bytes < 0 ? count : std::min(count, fault.short_bytes);
}

FaultScript::Fault& FaultScript::at(int64_t calls_from_now) {
  return faults_[num_calls_ + calls_from_now];
}

void FaultScript::fail(int64_t calls_from_now, int error_number) {
  const std::lock_guard lock(mutex_);
  at(calls_from_now).error_number = error_number;
}

void FaultScript::shorten(int64_t calls_from_now, int64_t nbytes) {
  const std::lock_guard lock(mutex_);
  at(calls_from_now).short_bytes = nbytes;
}

void FaultScript::delay(int64_t calls_from_now, int64_t microseconds) {
  const std::lock_guard lock(mutex_);
  at(calls_from_now).delay_microseconds = microseconds;
}

void FaultScript::flip_bit(int64_t calls_from_now) {
  const std::lock_guard lock(mutex_);
  at(calls_from_now).flips_bit = true;
}

void FaultScript::always(const Fault& fault) {
  const std::lock_guard lock(mutex_);
  always_ = fault;
}

void FaultScript::clear() {
  const std::lock_guard lock(mutex_);
  faults_.clear();
  always_ = Fault{};
}

int64_t FaultScript::num_calls() const {
  const std::lock_guard lock(mutex_);
  return num_calls_;
}

FaultScript::Fault FaultScript::next() {
  const std::lock_guard lock(mutex_);
  const auto found = faults_.find(num_calls_++);
  if (found == faults_.end()) return always_;
  const Fault fault = found->second;
  faults_.erase(found);
  return fault;
}

std::shared_ptr<ReadEngine> create_fault_engine(std::shared_ptr<FaultScript> script,
                                                const ReadEngineOptions& options,
                                                const std::string& engine) {
  if (engine == "io_uring") return create_uring_engine(options, std::move(script));
  if (engine != "pread") throw ConfigError("fault engine: unknown '" + engine + "'");
  const bool direct = options.direct_io;
  auto opener = [script = std::move(script), direct](const std::string& path) {
    return std::make_unique<FaultyFile>(open_disk_file(path, direct), script);
  };
  return std::make_shared<PreadEngine>("fault", std::move(opener), options.queue_depth);
}

}  // namespace sparseflow
