// Runs one greedy generation with llama.cpp's public interface and prints what each part took, one fact a line:
//   version TEXT / load SECONDS / prefill SECONDS / warm ID SECONDS / token ID SECONDS
// Usage: llama_driver MODEL none|mmap|dio REPACK THREADS UBATCH WARM NEW < token ids of the prompt
// SECONDS of a token are those of the step that takes it in, the choice of the next one included.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "llama.h"

namespace {

std::string last_error;

void keep_errors(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) last_error = text;
}

[[noreturn]] void fail(const std::string& what) {
  while (!last_error.empty() && last_error.back() == '\n') last_error.pop_back();
  std::fprintf(stderr, "%s%s%s\n", what.c_str(), last_error.empty() ? "" : ": ", last_error.c_str());
  std::exit(1);
}

double seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

llama_load_mode load_mode(const std::string& name) {
  if (name == "none") return LLAMA_LOAD_MODE_NONE;
  if (name == "mmap") return LLAMA_LOAD_MODE_MMAP;
  if (name == "dio") return LLAMA_LOAD_MODE_DIRECT_IO;
  fail("unknown load mode " + name);
}

class Run {
 public:
  Run(llama_context* context, int vocab_size) : context_(context), vocab_size_(vocab_size) {}

  // Takes `ids` in as one batch and returns the seconds that it took; `next` is then the best next token.
  double step(std::vector<llama_token> ids) {
    const double begin = seconds();
    if (llama_decode(context_, llama_batch_get_one(ids.data(), static_cast<int>(ids.size()))) != 0) {
      fail("llama_decode failed");
    }
    const float* logits = llama_get_logits_ith(context_, -1);
    next = static_cast<llama_token>(std::max_element(logits, logits + vocab_size_) - logits);
    return seconds() - begin;
  }

  // One greedy step for each of `count` tokens.
  void generate(const char* label, int count) {
    for (int i = 0; i < count; ++i) {
      const llama_token id = next;
      const double took = step({id});
      std::printf("%s %d %.9f\n", label, id, took);
    }
  }

  llama_token next = 0;

 private:
  llama_context* context_;
  int vocab_size_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) fail("usage: llama_driver MODEL none|mmap|dio REPACK THREADS UBATCH WARM NEW < ids");
  const int threads = std::atoi(argv[4]), ubatch = std::atoi(argv[5]);
  const int warm = std::atoi(argv[6]), fresh = std::atoi(argv[7]);
  std::vector<llama_token> prompt;
  for (llama_token id; std::cin >> id;) prompt.push_back(id);
  if (prompt.empty()) fail("no token ids on standard input");

  llama_log_set(keep_errors, nullptr);
  llama_backend_init();
  const double begin = seconds();
  llama_model_params model_params = llama_model_default_params();
  model_params.load_mode = load_mode(argv[2]);
  model_params.use_extra_bufts = std::strcmp(argv[3], "1") == 0;
  llama_model* model = llama_model_load_from_file(argv[1], model_params);
  if (model == nullptr) fail(std::string("llama.cpp cannot load ") + argv[1]);

  llama_context_params params = llama_context_default_params();
  params.n_batch = static_cast<uint32_t>(prompt.size());
  params.n_ubatch = static_cast<uint32_t>(ubatch);
  params.n_ctx = static_cast<uint32_t>(prompt.size()) + static_cast<uint32_t>(warm + fresh) + 1;
  params.n_outputs_max = 1;
  params.n_threads = params.n_threads_batch = threads;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) fail("llama.cpp cannot make a context");
  const double loaded = seconds();

  const int vocab_size = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (const llama_token id : prompt) {
    if (id < 0 || id >= vocab_size) fail("token id " + std::to_string(id) + " is outside the vocabulary");
  }
  std::printf("version %s\nload %.9f\n", llama_version(), loaded - begin);
  Run run(context, vocab_size);
  std::printf("prefill %.9f\n", run.step(prompt));
  run.generate("warm", warm);
  run.generate("token", fresh);
  std::fflush(stdout);
  llama_free(context);
  llama_model_free(model);
  llama_backend_free();
  return 0;
}
