"""Writes a qwen3_5_moe checkpoint as a GGUF file for llama.cpp, a few rows at a time.

    python benchmarks/peers/gguf_writer.py CHECKPOINT FILE.gguf --type Q4_0

Routed experts get the named type, other matrices Q8_0, small tensors float32, as in a file of llama.cpp's own tools.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers.gguf_layout import (
    ARCHITECTURE,
    DenseTensor,
    ExpertTensor,
    gguf_tensors,
    metadata,
    value_head_order,
)
from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.expert_slices import ExpertSlices
from sparseflow.container.matrix_formats import to_float32
from sparseflow.prepare.derived import neg_exp

ALIGNMENT = 32
BLOCK_VALUES = 1 << 21
TYPES = {"Q8_0": Type.Q8_0, "Q4_0": Type.Q4_0}

Bytes = NDArray[np.uint8]
ExpertBlocks = Callable[[int, int, int, Type], Bytes]
"""(layer, expert, projection, type) -> the matrix in that type, for a checkpoint that has a quicker way."""
Progress = Callable[[str, int, int], None]


def write_gguf(
    checkpoint: Checkpoint,
    path: Path,
    expert_type: Type,
    expert_blocks: ExpertBlocks | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the checkpoint to `path`, which appears only when it is whole, and returns it.

    Raises CheckpointError if a tensor is missing or of another shape than config.json asks for.
    """
    tensors = gguf_tensors(checkpoint.config, expert_type)
    part = path.with_name(path.name + ".part")
    total = _write_head(part, checkpoint.config, expert_type, tensors)
    done = 0
    slices = ExpertSlices(checkpoint)
    with part.open("ab") as file:
        for tensor in tensors:
            file.write(bytes(-file.tell() % ALIGNMENT))
            blocks = (
                _dense_blocks(checkpoint, tensor)
                if isinstance(tensor, DenseTensor)
                else _expert_blocks(checkpoint, slices, tensor, expert_blocks)
            )
            for block in blocks:
                file.write(block.data)
                done += block.nbytes
                if progress is not None:
                    progress("gguf", done, total)
        file.write(bytes(-file.tell() % ALIGNMENT))
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    return path


def _write_head(
    path: Path, config: dict[str, Any], expert_type: Type, tensors: list[DenseTensor | ExpertTensor]
) -> int:
    """Header, metadata and the list of tensors; returns the bytes of payload that follow."""
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    add = {
        "u32": writer.add_uint32,
        "f32": writer.add_float32,
        "str": writer.add_string,
        "array": writer.add_array,
    }
    for key, value, kind in metadata(config, expert_type):
        add[kind](key, value)
    total = 0
    for tensor in tensors:
        # The writer takes the shape of quantized tensors in bytes.
        shape: tuple[int, ...] = tensor.shape
        dtype: np.dtype[Any] = np.dtype(np.float32)
        if tensor.type != Type.F32:
            shape = gguf.quant_shape_to_byte_shape(tensor.shape, tensor.type)
            dtype = np.dtype(np.uint8)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        writer.add_tensor_info(tensor.name, shape, dtype, nbytes, tensor.type)
        total += nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return total


def _dense_blocks(checkpoint: Checkpoint, tensor: DenseTensor) -> Iterator[Bytes]:
    source = checkpoint.get(tensor.canonical, tensor.source_shape)
    where = f"{source.file}: tensor {source.name!r}"
    rows = tensor.shape[0] if len(tensor.shape) == 2 else 1
    row_bytes = source.nbytes // rows
    order = _row_order(tensor, checkpoint.config)
    step = rows if order is not None else max(1, BLOCK_VALUES * 2 // row_bytes)
    for row in range(0, rows, step):
        count = min(step, rows - row)
        raw = np.empty(count * row_bytes, np.uint8)
        checkpoint.read_into(source.file, source.offset + row * row_bytes, raw.data)
        values = to_float32(raw, source.dtype, where).reshape(count, -1)
        if order is not None:
            values = values[order]
        yield _encode(_changed(values, tensor, checkpoint.config, where), tensor.type)


def _row_order(tensor: DenseTensor, config: dict[str, Any]) -> NDArray[np.intp] | None:
    """The order of rows of what has a row, or some, for each value head; None where it stays."""
    part = tensor.canonical.partition("linear_attn.")[2]
    if part not in (
        "in_proj_qkv.weight",
        "in_proj_z.weight",
        "in_proj_a.weight",
        "in_proj_b.weight",
        "conv1d.weight",
    ):
        return None
    heads = value_head_order(config)
    width = (
        1 if part in ("in_proj_a.weight", "in_proj_b.weight") else config["linear_value_head_dim"]
    )
    kept = tensor.shape[0] - heads.size * width
    moved = kept + (heads[:, None] * width + np.arange(width)).reshape(-1)
    return np.concatenate([np.arange(kept), moved])


def _changed(
    values: NDArray[np.float32], tensor: DenseTensor, config: dict[str, Any], where: str
) -> NDArray[np.float32]:
    """Rows of a tensor as a GGUF file has them, but for the order of rows."""
    name = tensor.canonical
    if name.endswith(("A_log", "dt_bias", "out_proj.weight")):
        heads = value_head_order(config)
        values = np.ascontiguousarray(
            values.reshape(len(values), heads.size, -1)[:, heads].reshape(values.shape)
        )
        return neg_exp(values[0], where)[None] if name.endswith("A_log") else values
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return values + np.float32(1)
    return values


def _expert_blocks(
    checkpoint: Checkpoint,
    slices: ExpertSlices,
    tensor: ExpertTensor,
    blocks: ExpertBlocks | None,
) -> Iterator[Bytes]:
    """The tensor's matrices, one after another."""
    for expert in range(tensor.shape[0]):
        if blocks is not None:
            yield blocks(tensor.layer, expert, tensor.projection, tensor.type)
            continue
        part = slices.get(tensor.layer, expert)[tensor.projection]
        raw = np.empty(part.nbytes, np.uint8)
        checkpoint.read_into(part.file, part.offset, raw.data)
        values = to_float32(raw, part.dtype, f"{part.file}: tensor {part.tensor!r}")
        yield _encode(values.reshape(part.shape), tensor.type)


def _encode(values: NDArray[np.float32], to: Type) -> Bytes:
    encoded: NDArray[Any] = values if to == Type.F32 else gguf.quants.quantize(values, to)
    return np.ascontiguousarray(encoded).reshape(-1).view(np.uint8)


def main(arguments: list[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--type", choices=TYPES, default="Q8_0", help="of the routed experts")
    options = parser.parse_args(arguments)
    with Checkpoint.open(options.checkpoint) as checkpoint:
        print(write_gguf(checkpoint, options.file, TYPES[options.type]))


if __name__ == "__main__":
    main(sys.argv[1:])
