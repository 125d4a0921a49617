"""dense.safetensors: which entries a tensor becomes, and the file's header, computed before any
payload is written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sparseflow.checkpoint.header import DTYPE_BYTES
from sparseflow.checkpoint.model_config import rotary_parameters
from sparseflow.checkpoint.tensor_classes import TensorClass, expected_tensors, get_family
from sparseflow.container.manifest import TensorRecord
from sparseflow.container.matrix_sizes import code_bytes, round_up, scale_bytes, scale_item_bytes
from sparseflow.container.recipes import BF16, FLOAT32, Recipe

EMBEDDING_NAME = "embed_tokens.weight"
DENSE_NAME = "dense.safetensors"
HEADER_ALIGNMENT = 64


INV_FREQ_NAME = "rotary.inv_freq"
_A_LOG, NEG_EXP_A = "linear_attn.A_log", "linear_attn.neg_exp_a"


@dataclass(frozen=True, slots=True)
class DenseTensor:
    """One tensor of dense.safetensors."""

    name: str
    canonical: str
    """Of the checkpoint's tensor that it is made of; empty if it is derived from config.json."""
    tensor_class: TensorClass
    source_shape: tuple[int, ...]
    record: TensorRecord


def dense_tensors(config: dict[str, Any], recipe: Recipe) -> list[DenseTensor]:
    """Every tensor of dense.safetensors for that configuration and recipe, in the order of the
    file's making.

    The head is always there; a tied one is made of the embedding. A_log becomes neg_exp_a. Raises
    CheckpointError if the configuration lacks a field.
    """
    family = get_family(config["model_type"])
    dims = family.dimensions(config)
    tensors = []
    for canonical, row in expected_tensors(family, config["layer_types"]).items():
        shape = tuple(dims[dim] for dim in row.shape)
        # A depthwise convolution [channels, 1, kernel] is a matrix [channels, kernel].
        stored = shape if len(shape) < 3 else (shape[0], shape[2])
        is_tied = row.tensor_class == TensorClass.HEAD and config["tie_word_embeddings"]
        tensors.append(
            DenseTensor(
                canonical.replace(_A_LOG, NEG_EXP_A),
                EMBEDDING_NAME if is_tied else canonical,
                row.tensor_class,
                shape,
                TensorRecord(recipe.format_of(row), stored),
            )
        )
    frequencies = (rotary_parameters(config)[1] // 2,)
    record = TensorRecord(FLOAT32, frequencies)
    return [*tensors, DenseTensor(INV_FREQ_NAME, "", TensorClass.ATTENTION, frequencies, record)]


@dataclass(frozen=True, slots=True)
class DenseEntry:
    """One safetensors entry."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def entries_of(name: str, record: TensorRecord) -> tuple[DenseEntry, ...]:
    """The entries that hold a tensor: codes and scales for an integer format, else the tensor
    itself.
    """
    item_bytes = scale_item_bytes(record.weight_format)
    if item_bytes:
        rows, cols = record.shape
        codes = code_bytes(record.weight_format, rows, cols)
        scales = scale_bytes(record.weight_format, rows, cols)
        return (
            DenseEntry(name + ".codes", "U8", (codes,), codes),
            DenseEntry(name + ".scales", f"F{8 * item_bytes}", (scales // item_bytes,), scales),
        )
    dtype = "BF16" if record.weight_format == BF16 else "F32"
    count = 1
    for dim in record.shape:
        count *= dim
    return (DenseEntry(name, dtype, record.shape, count * DTYPE_BYTES[dtype]),)


def build_dense_header(tensors: dict[str, TensorRecord]) -> tuple[bytes, dict[str, int], int]:
    """The header, the offset in the file of every entry, and the size of the file.

    Entries lie by falling item size, so that each is aligned to its own type, then in the order of
    `tensors`.
    """
    entries = [entry for name, record in tensors.items() for entry in entries_of(name, record)]
    entries.sort(key=lambda entry: -DTYPE_BYTES[entry.dtype])
    header: dict[str, object] = {"__metadata__": {"format": "sparseflow-dense-1"}}
    offset = 0
    offsets: dict[str, int] = {}
    for entry in entries:
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.nbytes],
        }
        offsets[entry.name] = offset
        offset += entry.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (round_up(8 + len(text), HEADER_ALIGNMENT) - 8 - len(text))
    raw = len(text).to_bytes(8, "little") + text
    return raw, {name: len(raw) + begin for name, begin in offsets.items()}, len(raw) + offset
