// Writes small .sfi files with seeded random experts, and keeps them in a directory that dies with
// the object.
#pragma once

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "sparseflow/dispatch.h"
#include "sparseflow/ops.h"
#include "sparseflow/sfi_file.h"
#include "sparseflow/weight_format.h"

namespace sparseflow::test {

struct SfiShape {
  int64_t num_layers = 1;
  int64_t num_experts = 8;
  int64_t hidden_size = 96;
  int64_t moe_intermediate_size = 40;
  WeightFormat format = WeightFormat::kInt8;
  uint32_t seed = 1;
};

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sparseflow-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  std::string file(const std::string& name) const {
    return (std::filesystem::path(path_) / name).string();
  }

 private:
  std::string path_;
};

inline void put(std::vector<std::byte>& bytes, size_t offset, uint64_t value, size_t nbytes) {
  std::memcpy(bytes.data() + offset, &value, nbytes);
}

inline void seal_header(std::vector<std::byte>& file, size_t header_bytes) {
  put(file, 160, 0, 8);
  put(file, 160, xxh3_64(file.data(), header_bytes), 8);
}

inline void write_bytes(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

// The bytes of a whole file of one layer.
inline std::vector<std::byte> build_sfi(const SfiShape& shape, int64_t layer) {
  const bool integer = shape.format == WeightFormat::kInt8;
  const bool grouped = scale_group(shape.format) != 0;
  const auto codes = [&](int64_t rows, int64_t cols) {
    return code_bytes(shape.format, rows, cols);
  };
  const auto scales = [&](int64_t rows, int64_t cols) {
    return scale_bytes(shape.format, rows, cols);
  };
  const int64_t inter = shape.moe_intermediate_size;
  const int64_t hidden = shape.hidden_size;
  const int64_t sizes[6] = {codes(inter, hidden),  scales(inter, hidden), codes(inter, hidden),
                            scales(inter, hidden), codes(hidden, inter),  scales(hidden, inter)};
  const int64_t rows[6] = {inter, inter, inter, inter, hidden, hidden};
  const int64_t cols[6] = {hidden, hidden, hidden, hidden, inter, inter};
  const int64_t header_bytes = round_up(256 + 8 * shape.num_experts, 4096);
  int64_t offsets[6];
  int64_t payload = 0;
  for (int part = 0; part < 6; ++part) {
    offsets[part] = sizes[part] == 0 ? 0 : payload;
    payload += round_up(sizes[part], 64);
  }
  const int64_t blob_bytes = round_up(payload, 4096);
  std::vector<std::byte> file(static_cast<size_t>(header_bytes + shape.num_experts * blob_bytes));
  std::memcpy(file.data(), "SFIEXP\r\n", 8);
  const uint64_t fields[8] = {1,
                              static_cast<uint64_t>(header_bytes),
                              static_cast<uint64_t>(layer),
                              static_cast<uint64_t>(shape.num_experts),
                              static_cast<uint64_t>(hidden),
                              static_cast<uint64_t>(inter),
                              static_cast<uint64_t>(shape.format),
                              static_cast<uint64_t>(scale_group(shape.format))};
  for (size_t i = 0; i < 8; ++i) put(file, 8 + 4 * i, fields[i], 4);
  put(file, 40, static_cast<uint64_t>(blob_bytes), 8);
  put(file, 48, static_cast<uint64_t>(payload), 8);
  put(file, 56, file.size(), 8);
  for (size_t part = 0; part < 6; ++part) {
    put(file, 64 + 16 * part, static_cast<uint64_t>(offsets[part]), 8);
    put(file, 72 + 16 * part, static_cast<uint64_t>(sizes[part]), 8);
  }
  std::mt19937 random(shape.seed + static_cast<uint32_t>(layer) * 7919u);
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    std::byte* blob = file.data() + header_bytes + e * blob_bytes;
    for (int part = 0; part < 6; ++part) {
      std::byte* p = blob + offsets[part];
      if (grouped) {
        if (part % 2 == 1) continue;
        std::normal_distribution<float> normal(0.0f, 0.05f);
        std::vector<float> weights(static_cast<size_t>(rows[part] * cols[part]));
        for (float& weight : weights) weight = normal(random);
        quantize_weights(select_kernels("portable"), shape.format, weights.data(), rows[part],
                         cols[part], reinterpret_cast<uint8_t*>(p), blob + offsets[part + 1]);
      } else if (part % 2 == 1) {
        for (int64_t row = 0; integer && row < rows[part]; ++row) {
          const float scale = 0.001f + 0.00001f * static_cast<float>(random() % 1000);
          std::memcpy(p + 4 * row, &scale, 4);
        }
      } else if (integer) {
        std::memset(p, 128, static_cast<size_t>(sizes[part]));
        for (int64_t row = 0; row < rows[part]; ++row) {
          for (int64_t col = 0; col < cols[part]; ++col) {
            const int64_t at =
                row / 16 * round_up(cols[part], 64) * 16 + col / 4 * 64 + row % 16 * 4 + col % 4;
            p[at] = static_cast<std::byte>(1 + random() % 255);
          }
        }
      } else {
        for (int64_t i = 0; i < rows[part] * cols[part]; ++i) {
          // A bfloat16 of either sign between 2^-7 and 2^-3.
          const auto bits = static_cast<uint16_t>(((random() & 1) << 15) |
                                                  ((120 + random() % 4) << 7) | (random() & 127));
          std::memcpy(p + 2 * i, &bits, 2);
        }
      }
    }
    put(file, static_cast<size_t>(256 + 8 * e), xxh3_64(blob, static_cast<size_t>(blob_bytes)), 8);
  }
  seal_header(file, static_cast<size_t>(header_bytes));
  return file;
}

// Writes all layers and returns their paths.
inline std::vector<std::string> write_experts(const TemporaryDirectory& directory,
                                              const SfiShape& shape) {
  std::vector<std::string> paths;
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    paths.push_back(directory.file("layer_" + std::to_string(layer) + ".sfi"));
    write_bytes(paths.back(), build_sfi(shape, layer));
  }
  return paths;
}

}  // namespace sparseflow::test
