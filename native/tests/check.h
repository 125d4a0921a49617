// What native tests need of a test framework: named facts, checks that name their line, and an exit
// status.
#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace sparseflow::test {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check(bool condition, const std::string& what,
                  std::source_location at = std::source_location::current()) {
  if (!condition) {
    throw Failure(std::string(at.file_name()) + ":" + std::to_string(at.line()) + ": " + what);
  }
}

// Runs body, which must throw an Error whose message contains part; returns what it threw.
template <typename Error, typename Body>
Error check_throws(Body&& body, const std::string& part,
                   std::source_location at = std::source_location::current()) {
  try {
    body();
  } catch (const Error& error) {
    check(std::string(error.what()).find(part) != std::string::npos,
          "the message is '" + std::string(error.what()) + "', not about '" + part + "'", at);
    return error;
  }
  check(false, "nothing thrown where '" + part + "' was expected", at);
  throw Failure("unreachable");
}

using Fact = std::pair<const char*, std::function<void()>>;

inline int run_facts(const std::vector<Fact>& facts) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a hang must show where
  int num_failed = 0;
  for (const auto& [name, body] : facts) {
    try {
      body();
      std::printf("ok   %s\n", name);
    } catch (const std::exception& error) {
      ++num_failed;
      std::printf("FAIL %s: %s\n", name, error.what());
    }
  }
  return num_failed == 0 ? 0 : 1;
}

}  // namespace sparseflow::test
