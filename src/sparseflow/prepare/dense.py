"""What dense.safetensors holds and the stream of byte blocks that fill it, a few rows of the
checkpoint at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparseflow.checkpoint.checkpoint import Checkpoint, CheckpointTensor
from sparseflow.checkpoint.model_config import rotary_parameters
from sparseflow.container.dense_layout import INV_FREQ_NAME, NEG_EXP_A, DenseTensor, entries_of
from sparseflow.container.matrix_formats import check_dtype, to_float32
from sparseflow.prepare.derived import inv_freq, neg_exp
from sparseflow.prepare.pipeline import map_in_order
from sparseflow.prepare.rows import Matrix, Rows, split_rows


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
            source = _source(checkpoint, tensor)
            check_dtype(source.dtype, f"{source.file}: tensor {source.name!r}")


def dense_blocks(checkpoint: Checkpoint, tensors: list[DenseTensor]) -> Iterator[Block]:
    """The bytes of the tensors' entries, block by block; rows are read and converted by several threads.

    Raises CheckpointError for a value that is not finite or beyond the format, UnsupportedError for a dtype that the
    format cannot hold.
    """
    derived = [tensor for tensor in tensors if _is_derived(checkpoint, tensor)]
    for tensor in derived:
        yield Block(tensor.name, 0, _derive(checkpoint, tensor).view(np.uint8))
    rows = (
        (tensor, rows)
        for tensor in tensors
        if not _is_derived(checkpoint, tensor)
        for rows in split_rows(_matrix(checkpoint, tensor))
    )
    for blocks in map_in_order(lambda item: _convert(checkpoint, *item), rows):
        yield from blocks


def _is_derived(checkpoint: Checkpoint, tensor: DenseTensor) -> bool:
    if tensor.name.endswith(NEG_EXP_A):
        return checkpoint.find(tensor.name) is None
    return tensor.name == INV_FREQ_NAME


def _source(checkpoint: Checkpoint, tensor: DenseTensor) -> CheckpointTensor:
    """What a tensor is made of. A checkpoint may hold -exp(A_log) itself, as GGUF files do."""
    name = tensor.name if tensor.name.endswith(NEG_EXP_A) else ""
    canonical = name if checkpoint.find(name) is not None else tensor.canonical
    return checkpoint.get(canonical, tensor.source_shape)


def _derive(checkpoint: Checkpoint, tensor: DenseTensor) -> NDArray[np.float32]:
    if tensor.name == INV_FREQ_NAME:
        return inv_freq(*rotary_parameters(checkpoint.config))
    matrix = _matrix(checkpoint, tensor)
    (rows,) = split_rows(matrix)
    return neg_exp(to_float32(rows.read(checkpoint), matrix.dtype, matrix.where), matrix.where)


def _matrix(checkpoint: Checkpoint, tensor: DenseTensor) -> Matrix:
    source = _source(checkpoint, tensor)
    shape = tensor.record.shape
    rows, cols = (shape[0], shape[1]) if len(shape) == 2 else (1, shape[0])
    return Matrix(
        source.file,
        source.offset,
        source.dtype,
        (rows, cols),
        source.nbytes // rows,
        tensor.record.weight_format,
        f"{source.file}: tensor {source.name!r}",
    )


def _convert(checkpoint: Checkpoint, tensor: DenseTensor, rows: Rows) -> list[Block]:
    entries = entries_of(tensor.name, tensor.record)
    parts = zip(entries, rows.offsets, rows.convert(checkpoint), strict=False)
    return [Block(entry.name, offset, data) for entry, offset, data in parts]
