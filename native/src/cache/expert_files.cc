#include "cache/open_in_engine.h"
#include "sparseflow/errors.h"
#include "sparseflow/expert_source.h"

namespace sparseflow {
namespace {

bool is_same_shape(const SfiGeometry& a, const SfiGeometry& b) noexcept {
  bool same = a.num_experts == b.num_experts && a.hidden_size == b.hidden_size &&
              a.moe_intermediate_size == b.moe_intermediate_size && a.format == b.format &&
              a.group_size == b.group_size && a.blob_bytes == b.blob_bytes &&
              a.header_bytes == b.header_bytes;
  for (size_t part = 0; part < a.sections.size(); ++part) {
    same = same && a.sections[part].offset == b.sections[part].offset &&
           a.sections[part].nbytes == b.sections[part].nbytes;
  }
  return same;
}

}  // namespace

ExpertFiles open_expert_files(const std::vector<std::string>& paths) {
  if (paths.empty()) throw ConfigError("expert store: no .sfi files given");
  ExpertFiles files;
  for (const std::string& path : paths) {
    SfiHeader header = read_sfi_header(path);
    const auto layer = static_cast<int64_t>(files.headers.size());
    if (header.geometry.layer != layer) {
      throw ContainerError(path + ": holds layer " + std::to_string(header.geometry.layer) +
                           " where layer " + std::to_string(layer) +
                           " is expected; prepare the container again");
    }
    if (layer > 0 && !is_same_shape(header.geometry, files.headers.front().geometry)) {
      throw ContainerError(path + ": its experts differ in shape or format from those of " +
                           paths.front() + "; prepare the container again");
    }
    files.paths.push_back(path);
    files.headers.push_back(std::move(header));
  }
  return files;
}

std::vector<int> open_in_engine(const ExpertFiles& files, ReadEngine& engine) {
  std::vector<int> ids;
  for (size_t layer = 0; layer < files.paths.size(); ++layer) {
    const int id = engine.open(files.paths[layer]);
    if (engine.file_bytes(id) != files.headers[layer].geometry.file_bytes) {
      throw ContainerError(files.paths[layer] + ": changed its size while it was opened");
    }
    ids.push_back(id);
  }
  return ids;
}

}  // namespace sparseflow
