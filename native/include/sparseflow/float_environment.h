// The floating-point mode of the numeric contract: round to nearest, exceptions masked, subnormals
// kept.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace sparseflow {

// Sets the calling thread's mode for as long as it lives and restores what was there.
class FloatEnvironment {
 public:
#if defined(__SSE__)
  FloatEnvironment() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~FloatEnvironment() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
  FloatEnvironment() noexcept {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~FloatEnvironment() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
  FloatEnvironment() noexcept = default;
#endif
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  uint64_t saved_ = 0;
};

}  // namespace sparseflow
