// Every read engine delivers the same bytes or the same error, and recovers from what system calls
// do.
#include "sparseflow/read_engine.h"

#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "check.h"
#include "io/fault_script.h"
#include "io/pread_engine.h"
#include "sfi_builder.h"
#include "sparseflow/errors.h"

using namespace sparseflow;
using namespace sparseflow::test;

namespace {

constexpr int64_t kPage = 4096;

class Collector final : public ReadSink {
 public:
  void read_done(const ReadRequest& request, const ReadResult& result) noexcept override {
    const std::lock_guard lock(mutex_);
    results_[request.tag] = result;
    done_.notify_all();
  }
  ReadResult wait(uint64_t tag) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return results_.contains(tag); });
    return results_[tag];
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::map<uint64_t, ReadResult> results_;
};

struct PageBuffer {
  explicit PageBuffer(int64_t n)
      : nbytes(n),
        data(static_cast<std::byte*>(std::aligned_alloc(4096, static_cast<size_t>(n)))) {}
  ~PageBuffer() { std::free(data); }
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;
  int64_t nbytes;
  std::byte* data;
};

std::vector<std::byte> pattern(int64_t nbytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(nbytes));
  std::mt19937 random(3);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

struct Setup {
  explicit Setup(std::shared_ptr<ReadEngine> e) : engine(std::move(e)) {
    write_bytes(path, contents);
    file = engine->open(path);
  }
  ReadResult read(int64_t offset, PageBuffer& buffer) {
    engine->submit({file, offset, buffer.nbytes, buffer.data, &collector, ++tag});
    return collector.wait(tag);
  }
  bool holds(const PageBuffer& buffer, int64_t offset) const {
    return std::memcmp(buffer.data, contents.data() + offset, static_cast<size_t>(buffer.nbytes)) ==
           0;
  }

  TemporaryDirectory directory;
  std::vector<std::byte> contents = pattern(64 * kPage);
  std::string path = directory.file("data");
  std::shared_ptr<ReadEngine> engine;
  Collector collector;
  int file = -1;
  uint64_t tag = 0;
};

// Engines that talk to the kernel, and that it lets be made here.
std::vector<std::string> kernel_engines() {
  std::vector<std::string> names = {"pread"};
  if (std::string(create_read_engine("auto", {})->name()) == "io_uring")
    names.push_back("io_uring");
  return names;
}

std::vector<std::shared_ptr<ReadEngine>> all_engines() {
  std::vector<std::shared_ptr<ReadEngine>> engines = {create_read_engine("memory", {})};
  for (const std::string& name : kernel_engines()) {
    engines.push_back(create_read_engine(name, {3, true}));
    engines.push_back(create_read_engine(name, {1, false}));
    engines.push_back(create_fault_engine(std::make_shared<FaultScript>(), {2, true}, name));
  }
  return engines;
}

void every_engine_reads_the_same_bytes() {
  for (auto& engine : all_engines()) {
    Setup setup(engine);
    std::vector<std::unique_ptr<PageBuffer>> buffers;
    for (uint64_t i = 0; i < 16; ++i) {
      buffers.push_back(std::make_unique<PageBuffer>(4 * kPage));
      engine->submit({setup.file, static_cast<int64_t>(i) * 4 * kPage, 4 * kPage, buffers[i]->data,
                      &setup.collector, 100 + i});
    }
    for (uint64_t i = 0; i < 16; ++i) {
      check(setup.collector.wait(100 + i).error_number == 0,
            std::string(engine->name()) + " reads");
      check(setup.holds(*buffers[i], static_cast<int64_t>(i) * 4 * kPage),
            std::string(engine->name()) + " reads the right bytes");
    }
    check(engine->file_bytes(setup.file) == 64 * kPage && engine->path(setup.file) == setup.path,
          "facts of the file");
  }
}

void every_engine_reports_the_end_of_the_file() {
  for (auto& engine : all_engines()) {
    Setup setup(engine);
    PageBuffer buffer(2 * kPage);
    const ReadResult result = setup.read(63 * kPage, buffer);
    check(result.error_number == ENODATA && result.error_offset == 64 * kPage, engine->name());
  }
}

void every_engine_refuses_a_missing_file() {
  for (auto& engine : all_engines()) {
    const auto error = check_throws<StorageError>([&] { engine->open("/nonexistent/file"); },
                                                  "cannot open /nonexistent/file");
    check(error.error_number == ENOENT, "errno is carried");
  }
}

void unknown_engines_are_refused_by_naming_the_known() {
  check_throws<ConfigError>([] { create_read_engine("uring", {}); }, "known: auto, pread");
  check_throws<ConfigError>([] { create_read_engine("pread", {0, true}); }, "queue_depth");
}

void interrupted_and_short_reads_go_on() {
  for (const std::string& name : kernel_engines()) {
    const auto script = std::make_shared<FaultScript>();
    Setup setup(create_fault_engine(script, {1, true}, name));
    PageBuffer buffer(8 * kPage);
    script->fail(0, EINTR);
    script->shorten(1, 100);
    script->fail(2, EINTR);
    script->shorten(3, 2 * kPage + 5);
    check(setup.read(8 * kPage, buffer).error_number == 0, "the read ends well");
    check(setup.holds(buffer, 8 * kPage), "all bytes are right");
    check(script->num_calls() == 5, "it took five system calls");
  }
}

void a_read_that_makes_no_progress_ends() {
  for (const std::string& name : kernel_engines()) {
    const auto script = std::make_shared<FaultScript>();
    Setup setup(create_fault_engine(script, {1, true}, name));
    if (!setup.engine->is_direct(setup.file))
      continue;  // buffered reads progress by any number of bytes
    PageBuffer buffer(2 * kPage);
    FaultScript::Fault tiny;
    tiny.short_bytes = 7;
    script->always(tiny);
    check(setup.read(0, buffer).error_number == EIO, "EIO");
    script->clear();
    check(setup.read(0, buffer).error_number == 0 && setup.holds(buffer, 0),
          "the next read is good");
  }
}

void an_error_carries_its_offset_and_only_fails_its_read() {
  for (const std::string& name : kernel_engines()) {
    const auto script = std::make_shared<FaultScript>();
    Setup setup(create_fault_engine(script, {1, false}, name));
    PageBuffer buffer(4 * kPage);
    script->shorten(0, kPage);
    script->fail(1, EIO);
    const ReadResult result = setup.read(4 * kPage, buffer);
    check(result.error_number == EIO && result.error_offset == 5 * kPage, "where it failed");
    check(setup.read(4 * kPage, buffer).error_number == 0 && setup.holds(buffer, 4 * kPage),
          "the next read is good");
  }
}

// A file whose direct reads the file system refuses only when they are made.
void direct_reads_refused_at_first_read_fall_back_to_buffered() {
  for (const std::string& name : kernel_engines()) {
    Setup setup(create_read_engine(name, {1, true}));
    if (!setup.engine->is_direct(setup.file)) continue;  // this file system has no direct reads
    PageBuffer buffer(2 * kPage);
    setup.engine->submit({setup.file, 100, kPage, buffer.data, &setup.collector,
                          77});  // an offset that O_DIRECT refuses
    check(setup.collector.wait(77).error_number == 0, "the read ends well");
    check(std::memcmp(buffer.data, setup.contents.data() + 100, kPage) == 0, "its bytes are right");
    check(!setup.engine->is_direct(setup.file), "the fallback is reported");
    check(setup.read(0, buffer).error_number == 0 && setup.holds(buffer, 0),
          "later reads are buffered");
  }
}

void a_dying_engine_ends_every_read() {
  for (const std::string& name : kernel_engines()) {
    const auto script = std::make_shared<FaultScript>();
    FaultScript::Fault slow;
    slow.delay_microseconds = 20000;
    script->always(slow);
    Setup setup(create_fault_engine(script, {1, true}, name));
    std::vector<std::unique_ptr<PageBuffer>> buffers;
    for (uint64_t i = 0; i < 4; ++i) {
      buffers.push_back(std::make_unique<PageBuffer>(kPage));
      setup.engine->submit({setup.file, 0, kPage, buffers[i]->data, &setup.collector, i});
    }
    setup.engine.reset();
    int num_cancelled = 0;
    for (uint64_t i = 0; i < 4; ++i)
      num_cancelled += setup.collector.wait(i).error_number == ECANCELED;
    check(num_cancelled >= 2, "reads not begun are cancelled");
  }
}

}  // namespace

int main() {
  return run_facts(
      {{"every engine reads the same bytes", every_engine_reads_the_same_bytes},
       {"every engine reports the end of the file", every_engine_reports_the_end_of_the_file},
       {"every engine refuses a missing file", every_engine_refuses_a_missing_file},
       {"unknown engines are refused by naming the known",
        unknown_engines_are_refused_by_naming_the_known},
       {"interrupted and short reads go on", interrupted_and_short_reads_go_on},
       {"a read that makes no progress ends", a_read_that_makes_no_progress_ends},
       {"an error carries its offset and only fails its read",
        an_error_carries_its_offset_and_only_fails_its_read},
       {"direct reads refused at first read fall back to buffered",
        direct_reads_refused_at_first_read_fall_back_to_buffered},
       {"a dying engine ends every read", a_dying_engine_ends_every_read}});
}
