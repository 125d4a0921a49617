// The .sfi header parser refuses or accepts any bytes, and what it accepts can be used.
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "fuzz_target.h"
#include "sfi_builder.h"
#include "sparseflow/errors.h"

using namespace sparseflow;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// Takes the input as a file; its last blob must be within it.
void parse(std::span<const std::byte> file) {
  const auto file_bytes = static_cast<int64_t>(file.size());
  const SfiGeometry g =
      parse_sfi_geometry(file.first(std::min<size_t>(256, file.size())), file_bytes, "input");
  require(g.header_bytes + g.num_experts * g.blob_bytes == file_bytes &&
          g.payload_bytes <= g.blob_bytes);
  for (const SfiSection& s : g.sections) {
    require(s.offset >= 0 && s.nbytes >= 0 && s.offset + s.nbytes <= g.payload_bytes &&
            s.offset % 64 == 0);
  }
  const SfiHeader header = parse_sfi_header(file, g, "input");
  require(header.blob_hashes.size() == static_cast<size_t>(g.num_experts));
  for (int64_t e = 0; e < g.num_experts; ++e) {
    const std::byte* blob = file.data() + g.header_bytes + e * g.blob_bytes;
    (void)find_blob_error(g, header.blob_hashes[static_cast<size_t>(e)], blob);
    (void)find_padding_error(g, blob);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // As it is, and with a header hash that fits, so that damage behind the hash check is reached
  // too.
  std::vector<std::byte> file(size);
  if (size != 0) std::memcpy(file.data(), data, size);
  for (const bool sealed : {false, true}) {
    if (sealed && size >= 4096) {
      uint32_t header_bytes;
      std::memcpy(&header_bytes, file.data() + 12, 4);
      if (header_bytes < 256 || header_bytes > size) break;
      test::seal_header(file, header_bytes);
    }
    try {
      parse(file);
    } catch (const ContainerError&) {
    } catch (const UnsupportedError&) {
    }
  }
  return 0;
}

std::vector<std::vector<uint8_t>> good_inputs() {
  std::vector<std::vector<uint8_t>> inputs;
  for (const WeightFormat format : weight_formats()) {
    if (format == WeightFormat::kFloat32) continue;
    test::SfiShape shape;
    shape.num_experts = 2;
    shape.hidden_size = 20;
    shape.moe_intermediate_size = 18;
    shape.format = format;
    const auto file = test::build_sfi(shape, 0);
    inputs.emplace_back(file.size());
    std::memcpy(inputs.back().data(), file.data(), file.size());
  }
  return inputs;
}
