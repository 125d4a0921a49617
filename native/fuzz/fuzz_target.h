// What a fuzz target offers: libFuzzer's entry, and good inputs for the driver to damage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

std::vector<std::vector<uint8_t>> good_inputs();
