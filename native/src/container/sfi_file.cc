#include "sparseflow/sfi_file.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "io/plain_file.h"
#include "sparseflow/errors.h"
#include "sparseflow/weight_format.h"

namespace sparseflow {
namespace {

constexpr char kMagic[8] = {'S', 'F', 'I', 'E', 'X', 'P', '\r', '\n'};
constexpr int64_t kSectionAlignment = 64;
constexpr int64_t kHashOffset = 160;
constexpr int64_t kReservedOffset = 168;

uint32_t load_u32(const std::byte* p) noexcept {
  uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

uint64_t load_u64(const std::byte* p) noexcept {
  uint64_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw ContainerError(name + ": " + what + "; prepare the container again or copy it again");
}

int64_t checked_field(uint64_t value, int64_t low, int64_t high, const std::string& name,
                      const char* field) {
  if (value < static_cast<uint64_t>(low) || value > static_cast<uint64_t>(high)) {
    refuse(name, std::string(field) + " is " + std::to_string(value) + ", must be " +
                     std::to_string(low) + (high > low ? " to " + std::to_string(high) : ""));
  }
  return static_cast<int64_t>(value);
}

WeightFormat checked_format(uint32_t value, const std::string& name) {
  std::string known;
  for (const WeightFormat format : weight_formats()) {
    if (format == WeightFormat::kFloat32) continue;
    if (value == static_cast<uint32_t>(format)) return format;
    known += (known.empty() ? "" : ", ") + std::string(weight_format_name(format)) + " (" +
             std::to_string(static_cast<int32_t>(format)) + ")";
  }
  throw UnsupportedError(name + ": experts in weight format " + std::to_string(value) +
                         "; this version reads " + known);
}

constexpr const char* kPartNames[kNumSfiParts] = {"gate codes", "gate scales", "up codes",
                                                  "up scales",  "down codes",  "down scales"};

void check_sections(const std::byte* fixed, SfiGeometry* g, const std::string& name) {
  const int64_t inter = g->moe_intermediate_size;
  const int64_t hidden = g->hidden_size;
  const int64_t expected[kNumSfiParts] = {
      code_bytes(g->format, inter, hidden), scale_bytes(g->format, inter, hidden),
      code_bytes(g->format, inter, hidden), scale_bytes(g->format, inter, hidden),
      code_bytes(g->format, hidden, inter), scale_bytes(g->format, hidden, inter)};
  int64_t end = 0;
  for (int part = 0; part < kNumSfiParts; ++part) {
    const std::string what = kPartNames[part];
    const uint64_t offset = load_u64(fixed + 64 + part * 16);
    const uint64_t nbytes = load_u64(fixed + 72 + part * 16);
    if (nbytes != static_cast<uint64_t>(expected[part])) {
      refuse(name, what + " have " + std::to_string(nbytes) + " bytes, the geometry needs " +
                       std::to_string(expected[part]));
    }
    if (offset % kSectionAlignment != 0) {
      refuse(name, what + " are at " + std::to_string(offset) + ", not a multiple of 64");
    }
    if (offset > static_cast<uint64_t>(g->payload_bytes) ||
        nbytes > static_cast<uint64_t>(g->payload_bytes) - offset) {
      refuse(name,
             what + " end beyond the payload of " + std::to_string(g->payload_bytes) + " bytes");
    }
    const auto start = static_cast<int64_t>(offset);
    if (nbytes != 0) {
      if (start < end) refuse(name, what + " overlap the part before them");
      end = start + expected[part];
    }
    g->sections[static_cast<size_t>(part)] = {start, expected[part]};
  }
}

bool all_equal(const std::byte* begin, const std::byte* end, std::byte value) noexcept {
  return std::all_of(begin, end, [value](std::byte b) { return b == value; });
}

}  // namespace

SfiGeometry parse_sfi_geometry(std::span<const std::byte> fixed, int64_t file_bytes,
                               const std::string& name) {
  if (fixed.size() < static_cast<size_t>(kSfiFixedBytes)) {
    refuse(name, "cut short: " + std::to_string(file_bytes) + " bytes are less than a header");
  }
  const std::byte* p = fixed.data();
  if (std::memcmp(p, kMagic, sizeof kMagic) != 0) refuse(name, "not an .sfi file (wrong magic)");
  if (const uint32_t version = load_u32(p + 8); version != 1) {
    throw UnsupportedError(name + ": .sfi version " + std::to_string(version) +
                           "; this version of sparseflow reads 1");
  }
  SfiGeometry g{};
  g.layer = checked_field(load_u32(p + 16), 0, 65535, name, "layer");
  g.num_experts = checked_field(load_u32(p + 20), 1, 65536, name, "num_experts");
  g.hidden_size = checked_field(load_u32(p + 24), 1, kSfiMaxDimension, name, "hidden_size");
  g.moe_intermediate_size =
      checked_field(load_u32(p + 28), 1, kSfiMaxDimension, name, "moe_intermediate_size");
  g.format = checked_format(load_u32(p + 32), name);
  const int64_t group = scale_group(g.format);
  g.group_size = checked_field(load_u32(p + 36), group, group, name, "group_size");
  g.header_bytes = round_up(kSfiFixedBytes + 8 * g.num_experts, kSfiAlignment);
  if (const uint32_t claimed = load_u32(p + 12); claimed != static_cast<uint64_t>(g.header_bytes)) {
    refuse(name, "header_bytes is " + std::to_string(claimed) + ", " +
                     std::to_string(g.num_experts) + " experts need " +
                     std::to_string(g.header_bytes));
  }
  const uint64_t blob_bytes = load_u64(p + 40);
  const uint64_t claimed_bytes = load_u64(p + 56);
  if (claimed_bytes != static_cast<uint64_t>(file_bytes)) {
    refuse(name, "the header speaks of " + std::to_string(claimed_bytes) + " bytes, the file has " +
                     std::to_string(file_bytes));
  }
  // The file's real size bounds everything from here on: a product that fits in it cannot have
  // overflowed.
  if (blob_bytes == 0 || blob_bytes % kSfiAlignment != 0 ||
      blob_bytes > static_cast<uint64_t>(file_bytes) / static_cast<uint64_t>(g.num_experts)) {
    refuse(name, "blob_bytes is " + std::to_string(blob_bytes) +
                     ", not a multiple of 4096 that fits num_experts times into the file");
  }
  g.blob_bytes = static_cast<int64_t>(blob_bytes);
  if (g.header_bytes + g.num_experts * g.blob_bytes != file_bytes) {
    refuse(name, "header and " + std::to_string(g.num_experts) + " blobs of " +
                     std::to_string(g.blob_bytes) + " bytes are not the file's " +
                     std::to_string(file_bytes));
  }
  g.file_bytes = file_bytes;
  g.payload_bytes = checked_field(load_u64(p + 48), g.blob_bytes - kSfiAlignment + 1, g.blob_bytes,
                                  name, "payload_bytes");
  check_sections(p, &g, name);
  if (!all_equal(p + kReservedOffset, p + kSfiFixedBytes, std::byte{0})) {
    refuse(name, "reserved header bytes are not zero");
  }
  return g;
}

SfiHeader parse_sfi_header(std::span<const std::byte> header, const SfiGeometry& geometry,
                           const std::string& name) {
  const auto header_bytes = static_cast<size_t>(geometry.header_bytes);
  if (header.size() < header_bytes) refuse(name, "cut short within the header");
  const auto index_end = static_cast<size_t>(kSfiFixedBytes + 8 * geometry.num_experts);
  if (!all_equal(header.data() + index_end, header.data() + header_bytes, std::byte{0})) {
    refuse(name, "header padding is not zero");
  }
  std::vector<std::byte> hashed(header.begin(), header.begin() + geometry.header_bytes);
  std::fill_n(hashed.begin() + kHashOffset, 8, std::byte{0});
  if (xxh3_64(hashed.data(), hashed.size()) != load_u64(header.data() + kHashOffset)) {
    refuse(name, "header hash differs: a header bit was changed");
  }
  SfiHeader result{geometry, std::vector<uint64_t>(static_cast<size_t>(geometry.num_experts))};
  std::memcpy(result.blob_hashes.data(), header.data() + kSfiFixedBytes,
              result.blob_hashes.size() * sizeof(uint64_t));
  return result;
}

SfiHeader read_sfi_header(const std::string& path) {
  const PlainFile file(path);
  std::array<std::byte, kSfiFixedBytes> fixed;
  const int64_t fixed_bytes = std::min(kSfiFixedBytes, file.bytes());
  file.read(fixed.data(), fixed_bytes, 0);
  const SfiGeometry geometry = parse_sfi_geometry(
      std::span(fixed).first(static_cast<size_t>(fixed_bytes)), file.bytes(), path);
  std::vector<std::byte> header(static_cast<size_t>(geometry.header_bytes));
  file.read(header.data(), geometry.header_bytes, 0);
  // The file may have changed between the two reads; what was checked must be what is used.
  if (std::memcmp(header.data(), fixed.data(), fixed.size()) != 0) {
    refuse(path, "changed while it was read");
  }
  return parse_sfi_header(header, geometry, path);
}

ExpertView expert_view(const SfiGeometry& g, const std::byte* blob) noexcept {
  const auto matrix = [&](int part, int64_t rows, int64_t cols) {
    const SfiSection& codes = g.sections[static_cast<size_t>(part)];
    const SfiSection& scales = g.sections[static_cast<size_t>(part + 1)];
    return MatrixView{g.format, rows, cols, blob + codes.offset,
                      scales.nbytes == 0 ? nullptr : blob + scales.offset};
  };
  return {matrix(kGateCodes, g.moe_intermediate_size, g.hidden_size),
          matrix(kUpCodes, g.moe_intermediate_size, g.hidden_size),
          matrix(kDownCodes, g.hidden_size, g.moe_intermediate_size)};
}

const char* find_blob_error(const SfiGeometry& g, uint64_t expected_hash,
                            const std::byte* blob) noexcept {
  if (xxh3_64(blob, static_cast<size_t>(g.blob_bytes)) != expected_hash) return "hash differs";
  const ExpertView view = expert_view(g, blob);
  for (const MatrixView* w : {&view.gate, &view.up, &view.down}) {
    if (!has_finite_scales(*w)) return "a scale is not finite";
  }
  return nullptr;
}

const char* find_padding_error(const SfiGeometry& g, const std::byte* blob) noexcept {
  int64_t end = 0;
  for (const SfiSection& section : g.sections) {
    if (section.nbytes == 0) continue;
    if (!all_equal(blob + end, blob + section.offset, std::byte{0})) {
      return "bytes between two parts are not zero";
    }
    end = section.offset + section.nbytes;
  }
  if (!all_equal(blob + end, blob + g.blob_bytes, std::byte{0})) {
    return "bytes after the payload are not zero";
  }
  const ExpertView view = expert_view(g, blob);
  for (const MatrixView* w : {&view.gate, &view.up, &view.down}) {
    if (!has_clean_padding(*w)) return "a padded code is not the offset or a padded scale is not 0";
  }
  return nullptr;
}

void check_sfi_expert(const std::string& path, const SfiHeader& header, int64_t expert) {
  const SfiGeometry& g = header.geometry;
  if (expert < 0 || expert >= g.num_experts) {
    throw ConfigError(path + ": expert " + std::to_string(expert) + " of " +
                      std::to_string(g.num_experts));
  }
  const PlainFile file(path);
  std::vector<std::byte> bytes(static_cast<size_t>(g.blob_bytes + kSectionAlignment));
  void* aligned = bytes.data();
  size_t space = bytes.size();
  std::align(kSectionAlignment, static_cast<size_t>(g.blob_bytes), aligned, space);
  auto* blob = static_cast<std::byte*>(aligned);
  file.read(blob, g.blob_bytes, g.header_bytes + expert * g.blob_bytes);
  const char* error = find_blob_error(g, header.blob_hashes[static_cast<size_t>(expert)], blob);
  if (error == nullptr) error = find_padding_error(g, blob);
  if (error != nullptr) {
    refuse(path, "expert " + std::to_string(expert) + " of layer " + std::to_string(g.layer) +
                     ": " + error);
  }
}

}  // namespace sparseflow
