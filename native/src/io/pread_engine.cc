#include "io/pread_engine.h"

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <utility>

namespace sparseflow {

PreadEngine::PreadEngine(const char* name, FileOpener opener, int num_threads)
    : name_(name), opener_(std::move(opener)) {
  // Signals belong to the program's own threads: a read must not be what Ctrl-C interrupts.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { serve(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

PreadEngine::~PreadEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  for (const ReadRequest& request : queue_) {
    request.sink->read_done(request, {ECANCELED, request.offset});
  }
}

int PreadEngine::open(const std::string& path) {
  auto file = opener_(path);
  const std::lock_guard lock(mutex_);
  files_.push_back({path, std::move(file)});
  return static_cast<int>(files_.size()) - 1;
}

const PreadEngine::OpenFile& PreadEngine::find(int file) const {
  const std::lock_guard lock(mutex_);
  return files_.at(static_cast<size_t>(file));
}

void PreadEngine::submit(const ReadRequest& request) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(request);
  }
  work_.notify_one();
}

void PreadEngine::serve() noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const ReadRequest request = queue_.front();
    queue_.pop_front();
    PositionalFile& file = *files_[static_cast<size_t>(request.file)].file;
    lock.unlock();
    const ReadResult result = read_fully(file, request);
    request.sink->read_done(request, result);
    lock.lock();
  }
}

}  // namespace sparseflow
