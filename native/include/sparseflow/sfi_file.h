// The experts of one layer on disk, .sfi version 1 (docs/sfi_format.md): geometry, index and
// checks. Knows nothing of caches.
//
// A header is hostile input: every field is checked against every other and against the size of the
// file before anything is allocated, and what is not known is refused by name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sparseflow/kernel_table.h"

namespace sparseflow {

constexpr int64_t kSfiAlignment = 4096;  // of headers, blobs and file sizes
constexpr int64_t kSfiFixedBytes = 256;  // the part of the header before the index
constexpr int64_t kSfiMaxDimension =
    65536;  // integer dot products are exact up to this many inputs

// Where one part of an expert lies within its blob. Absent parts have nbytes 0.
struct SfiSection {
  int64_t offset;
  int64_t nbytes;
};

// In file order.
enum SfiPart : int {
  kGateCodes,
  kGateScales,
  kUpCodes,
  kUpScales,
  kDownCodes,
  kDownScales,
  kNumSfiParts
};

// What an expert of this file looks like. All experts of a layer share it, and all layers of a
// container.
struct SfiGeometry {
  int64_t layer;
  int64_t num_experts;
  int64_t hidden_size;
  int64_t moe_intermediate_size;
  WeightFormat format;
  int64_t group_size;
  int64_t header_bytes;
  int64_t blob_bytes;
  int64_t payload_bytes;
  int64_t file_bytes;
  std::array<SfiSection, kNumSfiParts> sections;
};

struct SfiHeader {
  SfiGeometry geometry;
  std::vector<uint64_t> blob_hashes;  // [num_experts] XXH3-64 of each blob, padding included
};

// The weights of one expert; pointers into its blob.
struct ExpertView {
  MatrixView gate;  // [moe_intermediate_size, hidden_size]
  MatrixView up;    // [moe_intermediate_size, hidden_size]
  MatrixView down;  // [hidden_size, moe_intermediate_size]
};

uint64_t xxh3_64(const void* data, size_t nbytes) noexcept;

// Checks the first kSfiFixedBytes of a file of file_bytes bytes. name is for messages.
// Throws ContainerError, or UnsupportedError for a version or weight format that this build does
// not read.
SfiGeometry parse_sfi_geometry(std::span<const std::byte> fixed, int64_t file_bytes,
                               const std::string& name);

// Checks the whole header, header[0 .. geometry.header_bytes), and returns it with its index.
// Throws ContainerError.
SfiHeader parse_sfi_header(std::span<const std::byte> header, const SfiGeometry& geometry,
                           const std::string& name);

// Reads and checks the header of the file at path; reads nothing else. Throws as above, or
// StorageError.
SfiHeader read_sfi_header(const std::string& path);

// The three matrices of the expert whose blob starts at blob, which must be 64-byte aligned and
// outlive the view.
ExpertView expert_view(const SfiGeometry& geometry, const std::byte* blob) noexcept;

// What every blob read from storage must pass before it is used: its hash and finite scales.
// Returns what is wrong, or null.
const char* find_blob_error(const SfiGeometry& geometry, uint64_t expected_hash,
                            const std::byte* blob) noexcept;

// What prepare guarantees beyond that: padded rows and inputs hold the offset, padded scales and
// the rest are zero.
const char* find_padding_error(const SfiGeometry& geometry, const std::byte* blob) noexcept;

// Reads one expert past any cache and checks hash, scales and padding. Throws ContainerError or
// StorageError.
void check_sfi_expert(const std::string& path, const SfiHeader& header, int64_t expert);

}  // namespace sparseflow
