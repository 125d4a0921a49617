// .sfi headers are hostile input: every field is checked, with a message of its own.
#include "sparseflow/sfi_file.h"

#include <cerrno>
#include <cmath>
#include <functional>

#include "check.h"
#include "sfi_builder.h"
#include "sparseflow/errors.h"

using namespace sparseflow;
using namespace sparseflow::test;

namespace {

void good_files_are_read_and_their_experts_pass() {
  for (const WeightFormat format : weight_formats()) {
    if (format == WeightFormat::kFloat32) continue;
    const TemporaryDirectory directory;
    SfiShape shape;
    shape.format = format;
    shape.hidden_size = 70;
    shape.moe_intermediate_size = 33;
    const auto path = write_experts(directory, shape).front();
    const SfiHeader header = read_sfi_header(path);
    check(header.geometry.hidden_size == 70 && header.geometry.moe_intermediate_size == 33,
          "geometry");
    check(header.blob_hashes.size() == 8, "one hash an expert");
    for (int64_t e = 0; e < 8; ++e) check_sfi_expert(path, header, e);
  }
}

void refuse(const std::function<void(std::vector<std::byte>&)>& damage, const std::string& part,
            bool reseal = true) {
  const TemporaryDirectory directory;
  std::vector<std::byte> file = build_sfi(SfiShape{}, 0);
  damage(file);
  if (reseal && file.size() >= 4096) seal_header(file, 4096);
  const std::string path = directory.file("damaged.sfi");
  write_bytes(path, file);
  check_throws<std::runtime_error>([&] { read_sfi_header(path); }, part);
}

void every_header_field_is_checked() {
  using Bytes = std::vector<std::byte>;
  const auto set = [](size_t at, uint64_t value, size_t nbytes) {
    return [=](Bytes& file) { put(file, at, value, nbytes); };
  };
  refuse([](Bytes& f) { f.clear(); }, "cut short");
  refuse([](Bytes& f) { f.resize(255); }, "cut short");
  refuse([](Bytes& f) { f.resize(4096); }, "the file has 4096");
  refuse([](Bytes& f) { f.resize(f.size() - 1); }, "the file has");
  refuse([](Bytes& f) { f.resize(f.size() + 4096); }, "the file has");
  refuse(set(0, 0, 1), "wrong magic");
  refuse(set(8, 2, 4), ".sfi version 2");
  refuse(set(12, 0xfffff000, 4), "header_bytes");
  refuse(set(12, 8192, 4), "header_bytes");
  refuse(set(16, 65536, 4), "layer is");
  refuse(set(20, 0, 4), "num_experts is 0");
  refuse(set(20, 0xffffffff, 4), "num_experts is");
  refuse(set(20, 7, 4), "blobs of");
  refuse(set(24, 0, 4), "hidden_size is 0");
  refuse(set(24, 65537, 4), "hidden_size is");
  refuse(set(24, 0x80000000, 4), "hidden_size is");
  refuse(set(28, 0, 4), "moe_intermediate_size is 0");
  refuse(set(28, 1 << 30, 4), "moe_intermediate_size is");
  refuse(set(28, 49, 4), "bytes, the geometry needs");
  refuse(set(32, 3, 4), "group_size is 0");
  refuse(set(32, 4, 4), "weight format 4");
  refuse(set(32, 99, 4), "weight format 99");
  refuse(set(36, 64, 4), "group_size is 64, must be 0");
  refuse(set(40, 0, 8), "blob_bytes is 0");
  refuse(set(40, 4095, 8), "blob_bytes");
  refuse(set(40, uint64_t{1} << 62, 8), "blob_bytes");
  refuse(set(48, uint64_t{1} << 62, 8), "payload_bytes");
  refuse(set(48, 1, 8), "payload_bytes");
  refuse(set(56, uint64_t{1} << 62, 8), "the file has");
  refuse(set(64, 1, 8), "not a multiple of 64");
  refuse(set(64, uint64_t{1} << 63, 8), "beyond the payload");
  refuse(set(64 + 32, 0, 8), "up codes overlap");
  refuse(set(72, uint64_t{0} - 64, 8), "gate codes have");
  refuse(set(88, 0, 8), "gate scales have 0 bytes");
  refuse(set(168, 1, 1), "reserved");
  refuse(set(255, 1, 1), "reserved");
  refuse(set(4095, 1, 1), "padding");
  refuse(set(256, 1, 1), "header hash", false);
  refuse(set(160, 1, 1), "header hash", false);
}

void damaged_experts_are_named() {
  const TemporaryDirectory directory;
  const SfiShape shape;
  const std::vector<std::byte> good = build_sfi(shape, 0);
  const std::string path = directory.file("layer.sfi");
  const auto refuse_expert = [&](const std::function<void(std::byte*, const SfiGeometry&)>& damage,
                                 bool rehash, const std::string& part) {
    std::vector<std::byte> file = good;
    write_bytes(path, file);
    const SfiGeometry g = read_sfi_header(path).geometry;
    std::byte* blob = file.data() + g.header_bytes + 3 * g.blob_bytes;
    damage(blob, g);
    if (rehash) put(file, 256 + 3 * 8, xxh3_64(blob, static_cast<size_t>(g.blob_bytes)), 8);
    seal_header(file, 4096);
    write_bytes(path, file);
    const SfiHeader header = read_sfi_header(path);
    check_sfi_expert(path, header, 2);
    check_throws<ContainerError>([&] { check_sfi_expert(path, header, 3); },
                                 "expert 3 of layer 0: " + part);
  };
  refuse_expert([](std::byte* blob, const SfiGeometry&) { blob[100] ^= std::byte{1}; }, false,
                "hash differs");
  const auto set_scale = [](int part, int64_t row, float value) {
    return [=](std::byte* blob, const SfiGeometry& g) {
      std::memcpy(blob + g.sections[static_cast<size_t>(part)].offset + 4 * row, &value, 4);
    };
  };
  refuse_expert(set_scale(kGateScales, 0, HUGE_VALF), true, "a scale is not finite");
  refuse_expert(set_scale(kDownScales, 5, NAN), true, "a scale is not finite");
  refuse_expert(set_scale(kGateScales, 40, 1.0f), true, "a padded code");
  refuse_expert(
      [](std::byte* blob, const SfiGeometry& g) { blob[g.sections[0].nbytes - 1] = std::byte{0}; },
      true, "a padded code");
  refuse_expert(
      [](std::byte* blob, const SfiGeometry& g) { blob[g.blob_bytes - 1] = std::byte{1}; }, true,
      "bytes after the payload");
  const SfiHeader header = read_sfi_header(path);
  check_throws<ConfigError>([&] { check_sfi_expert(path, header, 8); }, "expert 8 of 8");
}

// Of an int4-g64-v1 file: the same blob is good before and after.
void damaged_groups_are_named() {
  const TemporaryDirectory directory;
  SfiShape shape;
  shape.format = WeightFormat::kInt4G64;
  const std::vector<std::byte> good = build_sfi(shape, 0);
  const std::string path = directory.file("layer.sfi");
  const auto refuse_group = [&](int part, int64_t from_end, uint16_t bits, const char* message) {
    std::vector<std::byte> file = good;
    write_bytes(path, file);
    const SfiGeometry g = read_sfi_header(path).geometry;
    const SfiSection& section = g.sections[static_cast<size_t>(part)];
    std::byte* blob = file.data() + g.header_bytes;
    put(file, static_cast<size_t>(g.header_bytes + section.offset + section.nbytes - from_end),
        bits, 2);
    put(file, 256, xxh3_64(blob, static_cast<size_t>(g.blob_bytes)), 8);
    seal_header(file, 4096);
    write_bytes(path, file);
    const SfiHeader header = read_sfi_header(path);
    check_throws<ContainerError>([&] { check_sfi_expert(path, header, 0); }, message);
  };
  refuse_group(kGateScales, 32, 0x7C00, "a scale is not finite");
  refuse_group(kUpScales, 32, 0xFE00, "a scale is not finite");
  refuse_group(kGateScales, 2, 0x8000, "a padded scale is not 0");
  refuse_group(kDownCodes, 2, 0x8788, "a padded code is not the offset");
  refuse_group(kDownCodes, 2, 0x8878, "a padded code is not the offset");

  std::vector<std::byte> file = good;
  put(file, 36, 32, 4);
  seal_header(file, 4096);
  write_bytes(path, file);
  check_throws<ContainerError>([&] { read_sfi_header(path); }, "group_size is 32, must be 64");
}

void what_is_not_a_file_is_refused() {
  const TemporaryDirectory directory;
  const auto error =
      check_throws<StorageError>([&] { read_sfi_header(directory.file("absent")); }, "cannot open");
  check(error.error_number == ENOENT, "errno is carried");
  check_throws<StorageError>([&] { read_sfi_header(directory.file("")); }, "regular file");
}

}  // namespace

int main() {
  return run_facts(
      {{"good files are read and their experts pass", good_files_are_read_and_their_experts_pass},
       {"every header field is checked", every_header_field_is_checked},
       {"damaged experts are named", damaged_experts_are_named},
       {"damaged groups are named", damaged_groups_are_named},
       {"what is not a file is refused", what_is_not_a_file_is_refused}});
}
