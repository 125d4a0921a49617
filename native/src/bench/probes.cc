#include "sparseflow/probes.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "bench/byte_loops.h"
#include "io/read_error.h"
#include "sparseflow/errors.h"
#include "sparseflow/expert_cache.h"

namespace sparseflow {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kItemBytes = 1 << 20;
constexpr int64_t kMacRounds = 1 << 15;
constexpr int64_t kMacItemsPerThread = 4;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Memory {
  explicit Memory(int64_t n) : nbytes(n), data(map_aligned(n)) {}
  ~Memory() { unmap_aligned(data, nbytes); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  int64_t nbytes;
  std::byte* data;
};

// Keeps the engine's queue full: each read that ends starts the next one into its own buffer.
class ReadRun final : public ReadSink {
 public:
  ReadRun(ReadEngine& engine, std::vector<int> files, const std::vector<FileRange>& reads,
          int64_t nbytes)
      : engine_(engine),
        files_(std::move(files)),
        reads_(reads),
        nbytes_(nbytes),
        stride_(round_up(nbytes, kDirectAlignment)),
        memory_(engine.queue_depth() * stride_) {}

  // Seconds until all have ended.
  double run() {
    const auto start = Clock::now();
    for (int i = 0; i < engine_.queue_depth(); ++i) submit_next(static_cast<uint64_t>(i));
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return num_ended_ == reads_.size(); });
    return seconds_since(start);
  }

  // 0, or the first error with where it happened.
  int error_number() const noexcept { return error_number_; }
  int64_t error_offset() const noexcept { return error_offset_; }
  int error_file() const noexcept { return error_file_; }

  void read_done(const ReadRequest& request, const ReadResult& result) noexcept override {
    submit_next(request.tag);
    const std::lock_guard lock(mutex_);
    if (result.error_number != 0 && error_number_ == 0) {
      error_number_ = result.error_number;
      error_offset_ = result.error_offset;
      error_file_ = request.file;
    }
    if (++num_ended_ == reads_.size()) ended_.notify_all();
  }

 private:
  void submit_next(uint64_t buffer) {
    const size_t i = next_.fetch_add(1);
    if (i >= reads_.size()) return;
    const FileRange& read = reads_[i];
    engine_.submit({files_[static_cast<size_t>(read.file)], read.offset, nbytes_,
                    memory_.data + static_cast<int64_t>(buffer) * stride_, this, buffer});
  }

  ReadEngine& engine_;
  std::vector<int> files_;
  const std::vector<FileRange>& reads_;
  int64_t nbytes_;
  int64_t stride_;
  Memory memory_;
  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  size_t num_ended_ = 0;
  int error_number_ = 0;
  int64_t error_offset_ = 0;
  int error_file_ = 0;
};

}  // namespace

std::vector<double> time_memory_passes(Runtime& runtime, int64_t nbytes, MemoryLoop loop,
                                       int passes) {
  const int64_t items = std::max<int64_t>(1, nbytes / kItemBytes);
  const Memory memory(items * kItemBytes);
  runtime.pool().parallel_for(items, [&](int64_t item, int) {
    std::memset(memory.data + item * kItemBytes, 1, kItemBytes);
  });
  const ByteLoop body = loop == MemoryLoop::kRead ? read_loop() : dot_loop();
  std::atomic<uint64_t> sum{0};
  std::vector<double> seconds;
  for (int pass = 0; pass < passes; ++pass) {
    const auto start = Clock::now();
    runtime.pool().parallel_for(items, [&](int64_t item, int) {
      sum.fetch_add(body(memory.data + item * kItemBytes, kItemBytes), std::memory_order_relaxed);
    });
    seconds.push_back(seconds_since(start));
  }
  return seconds;
}

double measure_int8_rate(Runtime& runtime, double seconds) {
  const MacLoop loop = mac_loop(runtime.kernels().name);
  const int64_t items = kMacItemsPerThread * runtime.pool().num_threads();
  std::atomic<uint64_t> sum{0};
  double best = 0;
  const auto start = Clock::now();
  do {
    const auto begin = Clock::now();
    runtime.pool().parallel_for(items, [&](int64_t, int) {
      sum.fetch_add(loop.run(kMacRounds), std::memory_order_relaxed);
    });
    const auto macs = static_cast<double>(items * kMacRounds * loop.macs_per_round);
    best = std::max(best, macs / seconds_since(begin));
  } while (seconds_since(start) < seconds);
  return best;
}

double time_reads(ReadEngine& engine, const std::vector<std::string>& paths,
                  const std::vector<FileRange>& reads, int64_t nbytes) {
  if (nbytes < 1) throw ConfigError("nbytes: must be at least 1");
  std::vector<int> files;
  files.reserve(paths.size());
  for (const std::string& path : paths) files.push_back(engine.open(path));
  for (const FileRange& read : reads) {
    if (read.file < 0 || static_cast<size_t>(read.file) >= files.size() || read.offset < 0) {
      throw ConfigError("reads: no file " + std::to_string(read.file) + ", or a negative offset");
    }
  }
  if (reads.empty()) return 0;
  ReadRun run(engine, std::move(files), reads, nbytes);
  const double seconds = run.run();
  if (run.error_number() != 0) {
    throw_storage_error("cannot read", engine.path(run.error_file()), run.error_offset(),
                        run.error_number());
  }
  return seconds;
}

}  // namespace sparseflow
