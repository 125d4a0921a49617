#include "io/uring_engine.h"

#include <utility>

#include "io/uring.h"
#include "sparseflow/errors.h"

#ifdef SPARSEFLOW_HAS_URING

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "io/disk_file.h"

namespace sparseflow {
namespace {

constexpr uint64_t kWake = ~uint64_t{0};

int open_event() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) throw ConfigError("read engine io_uring: no descriptor left; choose pread");
  return fd;
}

class UringEngine final : public ReadEngine {
 public:
  UringEngine(const ReadEngineOptions& options, std::shared_ptr<FaultScript> script)
      : options_(options),
        script_(std::move(script)),
        ring_(static_cast<unsigned>(options.queue_depth) + 1),
        wake_(open_event()),
        operations_(static_cast<size_t>(options.queue_depth)) {
    for (size_t i = operations_.size(); i-- > 0;) idle_.push_back(i);
    // Signals belong to the program's own threads: a read must not be what Ctrl-C interrupts.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { serve(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~UringEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    thread_.join();
    ::close(wake_);
    for (const ReadRequest& request : queue_) {
      request.sink->read_done(request, {ECANCELED, request.offset});
    }
  }

  const char* name() const noexcept override { return "io_uring"; }
  int queue_depth() const noexcept override { return options_.queue_depth; }

  int open(const std::string& path) override {
    auto file = std::make_unique<DiskFile>(path, options_.direct_io);
    const std::lock_guard lock(mutex_);
    files_.push_back({path, std::move(file)});
    return static_cast<int>(files_.size()) - 1;
  }

  const std::string& path(int file) const override { return find(file).path; }
  int64_t file_bytes(int file) const override { return find(file).file->bytes(); }
  bool is_direct(int file) const override { return find(file).file->is_direct(); }

  void submit(const ReadRequest& request) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(request);
    }
    // The engine's own thread looks into the queue before it sleeps again.
    if (std::this_thread::get_id() != thread_.get_id()) wake();
  }

 private:
  struct OpenFile {
    std::string path;
    std::unique_ptr<DiskFile> file;
  };

  // One request that the kernel works on.
  struct Operation {
    ReadRequest request{};
    DiskFile* file = nullptr;
    ReadProgress progress;
    FaultScript::Fault fault;
  };

  const OpenFile& find(int file) const {
    const std::lock_guard lock(mutex_);
    return files_.at(static_cast<size_t>(file));
  }

  void wake() noexcept {
    const uint64_t one = 1;
    while (::write(wake_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }

  // The thread. It alone touches ring, operations and idle list.
  void serve() noexcept {
    wait_for_wake();
    while (begin_waiting() || idle_.size() < operations_.size()) {
      ring_.enter();  // what is interrupted or refused for now is handed over the next time
      uint64_t which = 0;
      int32_t result = 0;
      while (ring_.take_result(&which, &result)) {
        if (which == kWake) {
          uint64_t count = 0;
          (void)!::read(wake_, &count, sizeof(count));
          wait_for_wake();
        } else {
          finish(static_cast<size_t>(which), result);
        }
      }
    }
  }

  // Begins what is in the queue; false: the engine stops, and nothing more will begin.
  bool begin_waiting() noexcept {
    const std::lock_guard lock(mutex_);
    while (!stopping_ && !queue_.empty() && !idle_.empty()) {
      const size_t which = idle_.back();
      idle_.pop_back();
      const ReadRequest request = queue_.front();
      queue_.pop_front();
      operations_[which] = {request, files_[static_cast<size_t>(request.file)].file.get(), {}, {}};
      hand_over(which);
    }
    return !stopping_;
  }

  void wait_for_wake() noexcept {
    io_uring_sqe& sqe = ring_.next_operation();
    sqe.opcode = IORING_OP_POLL_ADD;
    sqe.fd = wake_;
    sqe.poll_events = POLLIN;
    sqe.user_data = kWake;
  }

  // One system call's worth of reading: what is left of the request.
  void hand_over(size_t which) noexcept {
    Operation& operation = operations_[which];
    const ReadRequest& request = operation.request;
    if (script_ != nullptr) operation.fault = script_->next();
    io_uring_sqe& sqe = ring_.next_operation();
    sqe.user_data = which;
    if (operation.fault.error_number != 0) {
      sqe.opcode = IORING_OP_NOP;
      return;
    }
    sqe.opcode = IORING_OP_READ;
    sqe.fd = operation.file->fd();
    sqe.addr =
        reinterpret_cast<uint64_t>(static_cast<char*>(request.buffer) + operation.progress.done);
    sqe.len = static_cast<uint32_t>(
        std::min<int64_t>(request.nbytes - operation.progress.done, kMaxCallBytes));
    sqe.off = static_cast<uint64_t>(request.offset + operation.progress.done);
  }

  void finish(size_t which, int32_t result) noexcept {
    Operation& operation = operations_[which];
    const ReadRequest request = operation.request;
    int64_t count = result == -EAGAIN ? -EINTR : result;
    if (script_ != nullptr) {
      char* buffer = static_cast<char*>(request.buffer) + operation.progress.done;
      count = FaultScript::apply(operation.fault, buffer, count);
    }
    const bool is_refused = count < 0 && operation.file->accept_refusal(static_cast<int>(-count));
    if (is_refused) count = -EINTR;
    if (!operation.progress.advance(request, count, operation.file->is_direct())) {
      hand_over(which);
      return;
    }
    const ReadResult outcome = operation.progress.result;
    idle_.push_back(which);
    request.sink->read_done(request, outcome);
  }

  static constexpr int64_t kMaxCallBytes = int64_t{1} << 30;  // a multiple of kDirectAlignment

  ReadEngineOptions options_;
  std::shared_ptr<FaultScript> script_;
  Uring ring_;
  int wake_;
  std::vector<Operation> operations_;
  std::vector<size_t> idle_;

  mutable std::mutex mutex_;
  std::deque<OpenFile> files_;  // grows only; elements stay where they are
  std::deque<ReadRequest> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

bool has_uring() noexcept { return true; }

std::shared_ptr<ReadEngine> create_uring_engine(const ReadEngineOptions& options,
                                                std::shared_ptr<FaultScript> script) {
  return std::make_shared<UringEngine>(options, std::move(script));
}

}  // namespace sparseflow

#else

namespace sparseflow {

bool has_uring() noexcept { return false; }

std::shared_ptr<ReadEngine> create_uring_engine(const ReadEngineOptions&,
                                                std::shared_ptr<FaultScript>) {
  throw ConfigError("read engine io_uring: this build does not know it; choose pread");
}

}  // namespace sparseflow

#endif
