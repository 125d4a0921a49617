// Where native time goes, by part of a step. Clocks run around whole calls from Python, some ten a
// layer; a call costs two readings, about 50 ns.
#pragma once

#include <array>
#include <chrono>
#include <string>
#include <vector>

namespace sparseflow {

enum class Part {
  kEmbedding,
  kNorm,
  kDelta,
  kAttention,
  kRouter,
  kExperts,
  kHead,
  kSample,
  kOther
};
constexpr int kNumParts = static_cast<int>(Part::kOther) + 1;

const char* part_name(Part part) noexcept;

// Throws ConfigError that names the known ones.
Part parse_part(const std::string& name);

// Seconds by part. Not thread-safe.
class PartTimes {
 public:
  void add(Part part, double seconds) noexcept { seconds_[static_cast<size_t>(part)] += seconds; }

  struct Time {
    Part part;
    double seconds;
  };
  // Of every part, in the order of the enum; they start again at zero.
  std::vector<Time> take();

 private:
  std::array<double, kNumParts> seconds_{};
};

}  // namespace sparseflow
