#include "sparseflow/dispatch.h"

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/tables.h"
#include "sparseflow/errors.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sparseflow {
namespace {

#if defined(__x86_64__)
// avx2_vnni is there in both encodings of its dot product; a CPU runs the one that it has.
constexpr const KernelTable* kTables[] = {&kAvx512VnniKernels, &kAvx2VnniKernels,
                                          &kAvx2VnniEvexKernels, &kAvx2Kernels, &kPortableKernels};

bool has(uint32_t word, int bit) { return ((word >> bit) & 1U) != 0; }

uint64_t enabled_state() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

uint32_t detect_features() {
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) {
    return 0;
  }
  const bool fma = has(c, 12);
  const bool os_saves_registers = has(c, 27);
  const bool avx = has(c, 28);
  const bool f16c = has(c, 29);
  // The operating system saves xmm and ymm (bits 1, 2), and for AVX-512 opmask and zmm too (bits 5
  // to 7).
  const uint64_t state = os_saves_registers ? enabled_state() : 0;
  if (!avx || (state & 0x6) != 0x6 || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) {
    return 0;
  }
  uint32_t features = 0;
  if (has(b, 5) && fma && f16c) {
    features |= kCpuAvx2;
  }
  if ((state & 0xE0) == 0xE0 && has(b, 16) && has(b, 17) && has(b, 30) && has(b, 31)) {
    features |= kCpuAvx512;
    if (has(c, 11)) {
      features |= kCpuAvx512Vnni;
    }
  }
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && has(a, 4)) {
    features |= kCpuAvxVnni;
  }
  return features;
}
#else
constexpr const KernelTable* kTables[] = {&kPortableKernels};

uint32_t detect_features() { return 0; }
#endif

bool can_run(const KernelTable& table) {
  static const uint32_t features = detect_features();
  return (table.cpu_features & ~features) == 0;
}

template <typename Wanted>
std::vector<std::string> names_of(Wanted wanted) {
  std::vector<std::string> names;
  for (const KernelTable* table : kTables) {
    const bool is_new = names.empty() || names.back() != table->name;
    if (is_new && wanted(*table)) names.emplace_back(table->name);
  }
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text = "auto";
  for (const std::string& name : names) {
    text += ", " + name;
  }
  return text;
}

}  // namespace

const KernelTable* const* all_kernels(int* count) noexcept {
  *count = static_cast<int>(sizeof(kTables) / sizeof(kTables[0]));
  return kTables;
}

const KernelTable& select_kernels(const std::string& name) {
  bool is_known = false;
  for (const KernelTable* table : kTables) {
    if (name != "auto" && name != table->name) continue;
    is_known = true;
    if (can_run(*table)) return *table;
  }
  if (is_known) {
    throw UnsupportedError("isa '" + name + "': this CPU lacks it; use one of " +
                           joined(runnable_isas()));
  }
  throw ConfigError("unknown isa '" + name + "'; known: " + joined(known_isas()));
}

std::vector<std::string> known_isas() {
  return names_of([](const KernelTable&) { return true; });
}

std::vector<std::string> runnable_isas() { return names_of(can_run); }

}  // namespace sparseflow
