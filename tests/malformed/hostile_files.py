"""Makes one hostile checkpoint or container for each idea; the test beside it says what each must be refused with.

python tests/malformed/hostile_files.py DIR     writes them all, to look at
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf_bytes import LLAMA, TOKENIZER, Stored, float32, gguf_bytes, llama_tensors

from make_synthetic_checkpoint import make, parse_options
from sparseflow.container.reader import Container
from sparseflow.errors import CheckpointError, ContainerError, SparseFlowError, UnsupportedError
from sparseflow.native import _ext
from sparseflow.prepare.prepare import prepare

DAMAGED = 1
"""Exit code of `verify` if bytes are not what they should be."""
PREFIX = "model.language_model."
GGUF_NAME = "model.gguf"


@dataclass(frozen=True)
class Idea:
    """One way to be hostile."""

    name: str
    kind: str
    """Which good thing it is made of: `checkpoint` (two shards), `single` (one file), `unfused`, `gguf` or `container`.
    """
    make: Callable[[Path], None]
    """Damages a copy."""
    exit_code: int
    phrase: str
    """A part of the one line that it must be refused with."""


IDEAS: list[Idea] = []


def idea(
    kind: str, refused: type[SparseFlowError] | int, phrase: str
) -> Callable[[Callable[[Path], None]], None]:
    """Registers a function that damages a directory, under its own name."""

    def register(function: Callable[[Path], None]) -> None:
        code = refused if isinstance(refused, int) else refused.exit_code
        IDEAS.append(Idea(function.__name__, kind, function, code, phrase))

    return register


def make_good(kind: str, directory: Path) -> Path:
    """The undamaged thing that ideas of this kind start from."""
    if kind == "gguf":
        directory.mkdir(parents=True)
        write_gguf(directory)
        return directory
    words = ["--tiny", "--layers", "1", "--shards", "1" if kind in ("single", "container") else "2"]
    words += ["--unfused"] if kind == "unfused" else []
    if kind != "container":
        return make(parse_options([*words, str(directory)]))
    with tempfile.TemporaryDirectory() as source:
        return prepare(make(parse_options([*words, source])), directory)


def write_gguf(
    directory: Path,
    changes: dict[str, Any] | None = None,
    tensors: dict[str, Stored] | None = None,
    **counts: Any,
) -> None:
    """A small llama model with experts; `changes` of its metadata and tensors."""
    metadata = {**LLAMA, **TOKENIZER, **(changes or {})}
    stored = {**llama_tensors(), **(tensors or {})}
    (directory / GGUF_NAME).write_bytes(gguf_bytes(metadata, stored, **counts))


def edit_json(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Applies `edit` to the document in a JSON file."""
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def edit_header(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Applies `edit` to the header of a safetensors file, keeping the payload."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    edit(header)
    replace_header(path, json.dumps(header).encode())


def replace_header(path: Path, text: bytes) -> None:
    """Puts another header in front of the payload of a safetensors file."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


def single(directory: Path) -> Path:
    return directory / "model.safetensors"


def first_shard(directory: Path) -> Path:
    return min(directory.glob("*.safetensors"))


def edit_tensor(directory: Path, name: str, **fields: Any) -> None:
    edit_header(single(directory), lambda header: header[PREFIX + name].update(fields))


def offsets(directory: Path, name: str) -> list[int]:
    found: list[int] = []
    edit_header(
        single(directory), lambda header: found.extend(header[PREFIX + name]["data_offsets"])
    )
    return found


# Headers


@idea("single", CheckpointError, "the file is cut")
def cut_header(directory: Path) -> None:
    with single(directory).open("r+b") as file:
        file.truncate(100)


@idea("single", CheckpointError, "header of 4611686018427387904 bytes")
def header_length_of_2_to_the_62(directory: Path) -> None:
    with single(directory).open("r+b") as file:
        file.write((1 << 62).to_bytes(8, "little"))


@idea("single", CheckpointError, "not valid at byte")
def header_nested_a_million_times(directory: Path) -> None:
    replace_header(single(directory), b'{"a":' + b"[" * 1_000_000 + b"}")


@idea("single", CheckpointError, "description of")
def header_with_millions_of_values(directory: Path) -> None:
    replace_header(single(directory), b'{"a":{"shape":[' + b"1.5," * 3_500_000 + b"1]}}")


@idea("single", CheckpointError, "more than 65536 tensors")
def header_with_hundreds_of_thousands_of_tensors(directory: Path) -> None:
    entries = (f'"{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in range(200_000))
    replace_header(single(directory), ("{" + ",".join(entries) + "}").encode())


@idea("single", CheckpointError, "is described twice")
def same_name_twice(directory: Path) -> None:
    raw = single(directory).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    text = raw[8 : 8 + length].strip()
    replace_header(
        single(directory),
        text[:-1] + b',"lm_head.weight":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
    )


@idea("single", CheckpointError, "overlaps")
def overlapping_offsets(directory: Path) -> None:
    begin, end = offsets(directory, "norm.weight")
    edit_tensor(directory, "norm.weight", data_offsets=[begin - 2, end - 2])


@idea("single", CheckpointError, "list of counts was expected")
def negative_offsets(directory: Path) -> None:
    begin, end = offsets(directory, "norm.weight")
    edit_tensor(directory, "norm.weight", data_offsets=[begin - end, 0])


@idea("single", CheckpointError, "the file is cut or its header is wrong")
def offsets_beyond_the_file(directory: Path) -> None:
    begin, end = offsets(directory, "norm.weight")
    edit_tensor(directory, "norm.weight", data_offsets=[1 << 40, (1 << 40) + end - begin])


@idea("single", CheckpointError, "takes 4611686018427387904 bytes")
def shape_that_overflows(directory: Path) -> None:
    edit_tensor(directory, "norm.weight", shape=[1 << 31, 1 << 30])


@idea("single", CheckpointError, "the file is cut")
def cut_payload(directory: Path) -> None:
    with single(directory).open("r+b") as file:
        file.truncate(single(directory).stat().st_size - 1)


@idea("single", CheckpointError, "F32 [72] takes 288 bytes")
def dtype_of_another_size(directory: Path) -> None:
    edit_tensor(directory, "norm.weight", dtype="F32")


@idea("single", CheckpointError, "unknown dtype 'BF17'")
def dtype_that_does_not_exist(directory: Path) -> None:
    edit_tensor(directory, "norm.weight", dtype="BF17")


@idea("single", UnsupportedError, "is I16; weights are read as BF16, F16, F32")
def wrong_dtype(directory: Path) -> None:
    edit_tensor(directory, "norm.weight", dtype="I16")


@idea("single", CheckpointError, "experts must be of one dtype")
def experts_of_two_dtypes(directory: Path) -> None:
    edit_tensor(directory, "layers.0.mlp.experts.down_proj", dtype="F16")


# Index and shards


@idea("checkpoint", CheckpointError, "are shards swapped")
def swapped_shards(directory: Path) -> None:
    first, second = sorted(directory.glob("*.safetensors"))
    first.rename(directory / "third")
    second.rename(first)
    (directory / "third").rename(second)


@idea("checkpoint", CheckpointError, "only plain file names are followed")
def path_traversal_in_the_index(directory: Path) -> None:
    shard = first_shard(directory)
    shutil.copy(shard, directory.parent / "outside.safetensors")
    index = directory / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(shard.name, "../outside.safetensors"))


@idea("checkpoint", CheckpointError, "no such file")
def missing_shard(directory: Path) -> None:
    first_shard(directory).unlink()


@idea("checkpoint", CheckpointError, "not in the index")
def tensor_that_the_index_leaves_out(directory: Path) -> None:
    edit_json(
        directory / "model.safetensors.index.json",
        lambda index: index["weight_map"].pop("lm_head.weight"),
    )


@idea("checkpoint", CheckpointError, "more than 200000 JSON values")
def index_with_a_million_entries(directory: Path) -> None:
    entries = ",".join(f'"t{i}":"a.safetensors"' for i in range(1_000_000))
    (directory / "model.safetensors.index.json").write_text(f'{{"weight_map":{{{entries}}}}}')


@idea("checkpoint", CheckpointError, "longer than the 33554432 bytes")
def index_of_a_gigabyte(directory: Path) -> None:
    with (directory / "model.safetensors.index.json").open("wb") as file:
        file.truncate(1 << 30)


# Tensors


def rename(directory: Path, old: str, new: str) -> None:
    """Renames a tensor in shards and index; both names are of one length."""
    for path in directory.iterdir():
        path.write_bytes(
            path.read_bytes().replace(f'"{PREFIX}{old}"'.encode(), f'"{PREFIX}{new}"'.encode())
        )


@idea("unfused", CheckpointError, "tensor 'layers.0.mlp.experts.17.up_proj.weight' is missing")
def missing_expert(directory: Path) -> None:
    name = PREFIX + "layers.0.mlp.experts.17.up_proj.weight"
    for path in directory.glob("*.safetensors"):
        edit_header(path, lambda header: drop(header, name))
    edit_json(
        directory / "model.safetensors.index.json", lambda index: drop(index["weight_map"], name)
    )


def drop(names: dict[str, Any], name: str) -> None:
    """Gives a tensor's bytes to one that is no part of the text model, since a payload has no gaps."""
    if name in names:
        names["model.visual.filler"] = names.pop(name)


@idea("single", CheckpointError, "tensor 'layers.0.mlp.experts.down_proj' is missing")
def missing_down_projection(directory: Path) -> None:
    edit_header(
        single(directory), lambda header: drop(header, PREFIX + "layers.0.mlp.experts.down_proj")
    )


@idea("checkpoint", UnsupportedError, "layers.0.mlp.gate.weirdo")
def tensor_that_nothing_claims(directory: Path) -> None:
    rename(directory, "layers.0.mlp.gate.weight", "layers.0.mlp.gate.weirdo")


@idea("single", CheckpointError, "config.json asks for [20, 80, 72]")
def expert_slices_of_another_shape(directory: Path) -> None:
    edit_tensor(directory, "layers.0.mlp.experts.gate_up_proj", shape=[40, 40, 72])


def set_last_weight(directory: Path, bits: bytes) -> None:
    """Of the last expert of layer 0, in BF16."""
    file, end = single(directory), offsets(directory, "layers.0.mlp.experts.down_proj")[1]
    raw = bytearray(file.read_bytes())
    place = 8 + int.from_bytes(raw[:8], "little") + end
    raw[place - 2 : place] = bits
    file.write_bytes(raw)


@idea("single", CheckpointError, "not finite")
def weight_that_is_not_finite(directory: Path) -> None:
    set_last_weight(directory, b"\x80\x7f")


@idea("single", CheckpointError, "row 71 has a value beyond 524032, the largest that int4-g32-v1")
def weight_that_no_float16_scale_reaches(directory: Path) -> None:
    set_last_weight(directory, b"\x80\x5f")


# Configuration


@idea("single", UnsupportedError, "'gptq'")
def unknown_quantization(directory: Path) -> None:
    edit_json(
        directory / "config.json",
        lambda config: config.update(quantization_config={"quant_method": "gptq"}),
    )


@idea("single", UnsupportedError, "unknown model_type 'llama'")
def unknown_family(directory: Path) -> None:
    edit_json(directory / "config.json", lambda config: config.update(model_type="llama"))


@idea("single", CheckpointError, "num_hidden_layers is 1000000000")
def configuration_with_a_billion_layers(directory: Path) -> None:
    edit_json(
        directory / "config.json",
        lambda config: config.update(num_hidden_layers=10**9, layer_types=None),
    )


@idea("single", CheckpointError, "nested too deeply")
def configuration_nested_a_hundred_thousand_times(directory: Path) -> None:
    (directory / "config.json").write_text('{"a":' * 100_000)


@idea("single", CheckpointError, "no such file")
def missing_configuration(directory: Path) -> None:
    (directory / "config.json").unlink()


# Containers

LAYER = "experts/layer_000.sfi"


def seal(directory: Path, name: str) -> None:
    """Gives the manifest the size and hash that a file has now."""
    raw = (directory / name).read_bytes()
    record = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    edit_json(
        directory / "manifest.json", lambda manifest: manifest["files"].update({name: record})
    )


def edit_layer(directory: Path, offset: int, data: bytes) -> None:
    """Changes bytes of the .sfi file and gives header, blob and manifest hashes that agree with them."""
    with Container.open(directory) as container:
        layout = container.layouts[0]
    raw = bytearray((directory / LAYER).read_bytes())
    raw[offset : offset + len(data)] = data
    for expert in range(layout.num_experts):
        blob = bytes(raw[layout.blob_offset(expert) : layout.blob_offset(expert + 1)])
        raw[256 + 8 * expert : 264 + 8 * expert] = _ext.xxh3_64(blob).to_bytes(8, "little")
    raw[160:168] = bytes(8)
    raw[160:168] = _ext.xxh3_64(bytes(raw[: layout.header_bytes])).to_bytes(8, "little")
    (directory / LAYER).write_bytes(raw)
    seal(directory, LAYER)


@idea("container", ContainerError, "manifest.json")
def missing_manifest(directory: Path) -> None:
    (directory / "manifest.json").unlink()


@idea("container", ContainerError, "inside the container")
def path_traversal_in_the_manifest(directory: Path) -> None:
    edit_json(
        directory / "manifest.json",
        lambda manifest: manifest["files"].update(
            {"../../etc/passwd": {"bytes": 1, "sha256": "0" * 64}}
        ),
    )


@idea("container", UnsupportedError, "format version 2")
def manifest_of_another_version(directory: Path) -> None:
    edit_json(directory / "manifest.json", lambda manifest: manifest.update(format_version=2))


@idea("container", ContainerError, "files is missing or not a dict")
def manifest_of_wrong_types(directory: Path) -> None:
    edit_json(directory / "manifest.json", lambda manifest: manifest.update(files=[1, 2]))


@idea("container", ContainerError, "the manifest names this file, but it is not there")
def missing_layer(directory: Path) -> None:
    (directory / LAYER).unlink()


@idea("container", ContainerError, "the manifest says")
def cut_layer(directory: Path) -> None:
    with (directory / LAYER).open("r+b") as file:
        file.truncate(8192)


@idea("container", DAMAGED, "expert 0 of layer 0: hash differs")
def flipped_payload_bit(directory: Path) -> None:
    raw = bytearray((directory / LAYER).read_bytes())
    raw[5_000] ^= 1
    (directory / LAYER).write_bytes(raw)


@idea("container", DAMAGED, "wrong magic")
def wrong_magic(directory: Path) -> None:
    edit_layer(directory, 0, b"SFIEXP\n\r")


@idea("container", UnsupportedError, ".sfi version 2")
def wrong_version_of_a_layer(directory: Path) -> None:
    edit_layer(directory, 8, (2).to_bytes(4, "little"))


@idea("container", DAMAGED, "group_size is 64, must be 32")
def wrong_group_size(directory: Path) -> None:
    edit_layer(directory, 36, (64).to_bytes(4, "little"))


@idea("container", DAMAGED, "group_size is 0, must be 32")
def no_group_size(directory: Path) -> None:
    edit_layer(directory, 36, bytes(4))


@idea("container", DAMAGED, "gate codes have 3072 bytes, the geometry needs 6144")
def layer_in_another_format(directory: Path) -> None:
    edit_layer(directory, 32, (5).to_bytes(4, "little") + (64).to_bytes(4, "little"))


@idea("container", UnsupportedError, "weight format 99")
def unknown_format_of_a_layer(directory: Path) -> None:
    edit_layer(directory, 32, (99).to_bytes(4, "little"))


@idea("container", DAMAGED, "num_experts is 4294967295")
def number_of_experts_that_overflows(directory: Path) -> None:
    edit_layer(directory, 20, (0xFFFFFFFF).to_bytes(4, "little"))


@idea("container", DAMAGED, "blob_bytes is 9223372036854775808")
def blob_size_that_overflows(directory: Path) -> None:
    edit_layer(directory, 40, (1 << 63).to_bytes(8, "little"))


@idea("container", DAMAGED, "overlap the part before")
def overlapping_sections(directory: Path) -> None:
    edit_layer(directory, 64 + 16, (64).to_bytes(8, "little"))


@idea("container", DAMAGED, "end beyond the payload")
def section_beyond_its_blob(directory: Path) -> None:
    edit_layer(directory, 64 + 5 * 16, (1 << 40).to_bytes(8, "little"))


@idea("container", DAMAGED, "expert 17 of layer 0: a scale is not finite")
def scale_that_is_not_finite(directory: Path) -> None:
    with Container.open(directory) as container:
        layout = container.layouts[0]
    edit_layer(directory, layout.blob_offset(17) + layout.sections[1][0], b"\x00\x00\x80\x7f")


@idea("container", DAMAGED, "expert 17 of layer 0: a padded code is not the offset")
def padded_code_that_is_a_weight(directory: Path) -> None:
    with Container.open(directory) as container:
        layout = container.layouts[0]
    end_of_gate = layout.blob_offset(17) + sum(layout.sections[0])
    edit_layer(directory, end_of_gate - 1, b"\x87")


@idea(
    "container", DAMAGED, "expert 17 of layer 0: a padded code is not the offset or a padded scale"
)
def padded_scale_that_is_not_zero(directory: Path) -> None:
    with Container.open(directory) as container:
        layout = container.layouts[0]
    end_of_scales = layout.blob_offset(17) + sum(layout.sections[1])
    edit_layer(directory, end_of_scales - 1, b"\x80")


@idea("container", DAMAGED, "not finite")
def dense_scale_that_is_not_finite(directory: Path) -> None:
    with Container.open(directory) as container:
        scales = container.read_entry("lm_head.weight.scales").tobytes()
    path = directory / "dense.safetensors"
    path.write_bytes(path.read_bytes().replace(scales, b"\x00\x00\x80\x7f" + scales[4:]))
    seal(directory, path.name)


@idea("container", ContainerError, "'norm.weight' is missing or not")
def dense_tensor_missing(directory: Path) -> None:
    path = directory / "dense.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"norm.weight"', b'"norm.weighs"'))
    seal(directory, path.name)


@idea("container", ContainerError, "header of 4611686018427387904 bytes")
def dense_header_length_of_2_to_the_62(directory: Path) -> None:
    with (directory / "dense.safetensors").open("r+b") as file:
        file.write((1 << 62).to_bytes(8, "little"))


# GGUF files


@idea("gguf", CheckpointError, "the file is cut")
def gguf_cut_in_its_head(directory: Path) -> None:
    with (directory / GGUF_NAME).open("r+b") as file:
        file.truncate(700)


@idea("gguf", CheckpointError, "ends at byte")
def gguf_cut_in_its_payload(directory: Path) -> None:
    with (directory / GGUF_NAME).open("r+b") as file:
        file.truncate((directory / GGUF_NAME).stat().st_size - 64)


@idea("gguf", CheckpointError, "4611686018427387904 tensors; at most 65536 are read")
def gguf_tensor_count_of_2_to_the_62(directory: Path) -> None:
    write_gguf(directory, num_tensors=1 << 62)


@idea("gguf", CheckpointError, "string of 4611686018427387904 bytes")
def gguf_string_of_2_to_the_62_bytes(directory: Path) -> None:
    write_gguf(directory, {"general.name": struct.pack("<IQ", 8, 1 << 62)})


@idea("gguf", CheckpointError, "takes 36893488147419103232 bytes")
def gguf_array_of_2_to_the_62_strings(directory: Path) -> None:
    write_gguf(directory, {"tokenizer.ggml.tokens": struct.pack("<IIQ", 9, 8, 1 << 62)})


@idea("gguf", CheckpointError, "beyond all memory")
def gguf_shape_of_2_to_the_62(directory: Path) -> None:
    write_gguf(directory, tensors={"token_embd.weight": Stored(30, (1 << 62, 32), b"")})


@idea("gguf", CheckpointError, "ends at byte")
def gguf_offset_beyond_the_file(directory: Path) -> None:
    embedding = llama_tensors()["token_embd.weight"]
    far = Stored(embedding.type, embedding.shape, embedding.data, 1 << 50)
    write_gguf(directory, tensors={"token_embd.weight": far})


@idea("gguf", CheckpointError, "overlaps")
def gguf_tensors_that_overlap(directory: Path) -> None:
    write_gguf(directory, tensors={"output_norm.weight": Stored(0, (32,), bytes(128), 0)})


@idea("gguf", UnsupportedError, "is IQ1_S, which is not read")
def gguf_type_that_is_not_read(directory: Path) -> None:
    write_gguf(directory, tensors={"output.weight": Stored(19, (12, 256), bytes(12 * 50))})


@idea("gguf", UnsupportedError, "unknown architecture 'gemma'")
def gguf_unknown_architecture(directory: Path) -> None:
    write_gguf(directory, {"general.architecture": "gemma"})


@idea("gguf", CheckpointError, "llama.block_count is 16777216")
def gguf_layers_without_number(directory: Path) -> None:
    write_gguf(directory, {"llama.block_count": 1 << 24})


@idea("gguf", CheckpointError, "tensor 'layers.1.mlp.experts.0.gate_proj.weight' is missing")
def gguf_layers_that_are_not_there(directory: Path) -> None:
    write_gguf(directory, {"llama.block_count": 4096})


@idea("gguf", CheckpointError, "the metadata ask for [16384, 32]")
def gguf_experts_that_are_not_there(directory: Path) -> None:
    write_gguf(directory, {"llama.expert_count": 16384})


@idea("gguf", UnsupportedError, "'rope_freqs.weight'")
def gguf_tensor_that_nothing_claims(directory: Path) -> None:
    write_gguf(directory, tensors={"rope_freqs.weight": float32(np.ones(8, np.float32))})


@idea("gguf", CheckpointError, "must be named NAME-00001-of-65535.gguf")
def gguf_one_of_65535_files(directory: Path) -> None:
    write_gguf(directory, {"split.count": 65535, "split.no": 0})


@idea("gguf", CheckpointError, "for an embedding of 12 rows")
def gguf_more_tokens_than_the_embedding(directory: Path) -> None:
    words = [f"t{i}" for i in range(100_000)]
    write_gguf(directory, {"tokenizer.ggml.tokens": words})


@idea("gguf", CheckpointError, "the metadata make no tokenizer")
def gguf_merge_of_an_unknown_token(directory: Path) -> None:
    write_gguf(directory, {"tokenizer.ggml.merges": ["q r"]})


@idea("gguf", CheckpointError, "has a value that is not finite")
def gguf_norm_that_is_not_finite(directory: Path) -> None:
    nan = float32(np.full(32, np.nan, np.float32))
    write_gguf(directory, tensors={"output_norm.weight": nan})


@idea("gguf", CheckpointError, "not finite")
def gguf_scale_that_is_not_finite(directory: Path) -> None:
    block = struct.pack("<e32b", float("inf"), *range(32))
    write_gguf(directory, tensors={"blk.0.ffn_up_exps.weight": Stored(8, (2, 32, 32), block * 64)})


if __name__ == "__main__":
    for each in IDEAS:
        each.make(make_good(each.kind, Path(sys.argv[1]) / each.name))
        print(f"{each.exit_code:3} {each.name}")
