// Moves bytes from files into memory, several requests at a time. Knows nothing of experts.
//
// One interface, one file per implementation in native/src/io: "pread" (a few threads that read),
// "io_uring" (one thread and the kernel's queue), "memory" (file contents held in memory, for
// tests); each of the first two also with a script that lets its system calls fail
// (io/fault_script.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sparseflow {

struct ReadRequest;

// How a read ended. error_number 0: all bytes are in the buffer. ENODATA: the file ended first.
struct ReadResult {
  int error_number;
  int64_t error_offset;  // in the file, where the failing system call began
};

// Is told about finished reads, on a thread of the engine or inside submit().
class ReadSink {
 public:
  virtual ~ReadSink() = default;
  // Exactly once for every submitted request. The buffer is the caller's again. May submit further
  // requests.
  virtual void read_done(const ReadRequest& request, const ReadResult& result) noexcept = 0;
};

struct ReadRequest {
  int file;        // from ReadEngine::open
  int64_t offset;  // multiple of kDirectAlignment for direct reads to be possible
  int64_t nbytes;  // likewise
  void* buffer;    // likewise aligned; belongs to the engine until read_done
  ReadSink* sink;  // outlives the request
  uint64_t tag;    // for the sink
};

constexpr int64_t kDirectAlignment = 4096;

// Thread-safe. The destructor returns when every submitted request has ended (those not begun end
// with ECANCELED).
class ReadEngine {
 public:
  virtual ~ReadEngine() = default;

  virtual const char* name() const noexcept = 0;

  // Reads that can be under way at once.
  virtual int queue_depth() const noexcept = 0;

  // Opens a regular file for the life of the engine. Throws StorageError.
  virtual int open(const std::string& path) = 0;

  virtual const std::string& path(int file) const = 0;
  virtual int64_t file_bytes(int file) const = 0;

  // Whether reads of this file bypass the page cache, as far as is known: a file system may refuse
  // at the first read.
  virtual bool is_direct(int file) const = 0;

  // Queues one read; never blocks for it. The caller must hold no lock that read_done needs.
  // An interrupted system call is repeated; a short read goes on where it stopped; end of file is
  // an error.
  virtual void submit(const ReadRequest& request) = 0;
};

struct ReadEngineOptions {
  int queue_depth = 4;
  bool direct_io = true;  // where the file system allows it; otherwise buffered, see is_direct
};

// "auto": io_uring where the system has it and lets us, else pread. Throws ConfigError for an
// unknown name, naming the known ones, and for io_uring by name where the system refuses it.
std::shared_ptr<ReadEngine> create_read_engine(const std::string& name,
                                               const ReadEngineOptions& options);

std::vector<std::string> read_engine_names();

}  // namespace sparseflow
