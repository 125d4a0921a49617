#include "sparseflow/part_times.h"

#include <algorithm>

#include "sparseflow/errors.h"

namespace sparseflow {
namespace {

constexpr std::array<const char*, kNumParts> kNames = {
    "embedding", "norm", "delta", "attention", "router", "experts", "head", "sample", "other"};

}  // namespace

const char* part_name(Part part) noexcept { return kNames[static_cast<size_t>(part)]; }

Part parse_part(const std::string& name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end()) return static_cast<Part>(found - kNames.begin());
  std::string known;
  for (const char* each : kNames) known += (known.empty() ? "" : ", ") + std::string(each);
  throw ConfigError("unknown part '" + name + "'; known: " + known);
}

std::vector<PartTimes::Time> PartTimes::take() {
  std::vector<Time> times;
  for (int i = 0; i < kNumParts; ++i) {
    times.push_back({static_cast<Part>(i), seconds_[static_cast<size_t>(i)]});
  }
  seconds_.fill(0);
  return times;
}

}  // namespace sparseflow
