#include "io/positional_file.h"

#include <cerrno>

namespace sparseflow {
namespace {

constexpr int kMaxStalls = 16;  // short reads in a row that did not even finish one alignment unit

}  // namespace

bool ReadProgress::advance(const ReadRequest& request, int64_t count, bool is_direct) noexcept {
  const int64_t at = request.offset + done;
  if (count == -EINTR) return false;
  if (count < 0) result = {static_cast<int>(-count), at};
  if (count == 0) result = {ENODATA, at};
  if (count <= 0) return true;
  int64_t next = done + count;
  if (next < request.nbytes && is_direct) next -= next % kDirectAlignment;
  stalls = next > done ? 0 : stalls + 1;
  done = next;
  if (stalls == kMaxStalls) result = {EIO, at};
  return stalls == kMaxStalls || done >= request.nbytes;
}

ReadResult read_fully(PositionalFile& file, const ReadRequest& request) noexcept {
  ReadProgress progress;
  int64_t count = 0;
  do {
    count = file.read_at(static_cast<char*>(request.buffer) + progress.done,
                         request.nbytes - progress.done, request.offset + progress.done);
  } while (!progress.advance(request, count, file.is_direct()));
  return progress.result;
}

}  // namespace sparseflow
