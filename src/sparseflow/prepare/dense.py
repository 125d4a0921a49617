"""What dense.safetensors holds and the stream of byte blocks that fill it, a few rows of the
checkpoint at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.model_config import rotary_parameters
from sparseflow.container.dense_layout import INV_FREQ_NAME, NEG_EXP_A, DenseTensor, entries_of
from sparseflow.container.matrix_formats import ROW_BLOCK, check_dtype, convert_rows, to_float32
from sparseflow.prepare.derived import inv_freq, neg_exp

BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive bytes of one entry of dense.safetensors."""

    entry: str
    offset: int
    data: NDArray[np.uint8]


def check_dense(checkpoint: Checkpoint, tensors: list[DenseTensor]) -> None:
    """Raises CheckpointError if a tensor is missing or of a shape that config.json does not ask for, UnsupportedError
    if it is of a dtype that is not read.
    """
    for tensor in tensors:
        if tensor.canonical:
            source = checkpoint.get(tensor.canonical, tensor.source_shape)
            check_dtype(source.dtype, f"{source.file}: tensor {source.name!r}")


def dense_blocks(checkpoint: Checkpoint, tensor: DenseTensor) -> Iterator[Block]:
    """The bytes of a tensor's entries, block by block; blocks of one entry come in order.

    Raises CheckpointError for a value that is not finite, UnsupportedError for a dtype that the
    format cannot hold.
    """
    record = tensor.record
    entries = entries_of(tensor.name, record)
    if tensor.name == INV_FREQ_NAME:
        yield Block(tensor.name, 0, inv_freq(*rotary_parameters(checkpoint.config)).view(np.uint8))
        return
    source = checkpoint.get(tensor.canonical, tensor.source_shape)
    where = f"{source.file}: tensor {source.name!r}"
    rows, cols = record.shape if len(record.shape) == 2 else (1, record.shape[0])
    row_bytes = source.nbytes // rows
    step = max(1, BLOCK_BYTES // row_bytes // ROW_BLOCK) * ROW_BLOCK
    offsets = [0] * len(entries)
    for row in range(0, rows, step):
        count = min(step, rows - row)
        raw = np.empty(count * row_bytes, np.uint8)
        checkpoint.read_into(source.file, source.offset + row * row_bytes, raw.data)
        if tensor.name.endswith(NEG_EXP_A):
            values = to_float32(raw, source.dtype, where)
            parts = [neg_exp(values, where).view(np.uint8)]
        else:
            parts = list(
                convert_rows(raw, source.dtype, (count, cols), record.weight_format, where)
            )
        for i, (entry, data) in enumerate(zip(entries, parts, strict=False)):
            yield Block(entry.name, offsets[i], data)
            offsets[i] += data.nbytes
