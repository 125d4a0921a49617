"""Some rows of a matrix at a time: read from the checkpoint, then converted, so that no matrix is in memory whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.container.matrix_formats import ROW_BLOCK, code_bytes, convert_rows, scale_bytes

BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Matrix:
    """Where a matrix lies in a checkpoint, and what it becomes."""

    file: Path
    offset: int
    dtype: str
    shape: tuple[int, int]
    row_bytes: int
    weight_format: str
    where: str
    """What errors begin with."""


@dataclass(frozen=True, slots=True)
class RawRows:
    """Rows of a matrix from `first` on, a multiple of 16, as the checkpoint has them."""

    matrix: Matrix
    first: int
    count: int
    data: NDArray[np.uint8]

    @property
    def offsets(self) -> tuple[int, int]:
        """Where codes and scales of these rows begin among those of the matrix."""
        weight_format, cols = self.matrix.weight_format, self.matrix.shape[1]
        return (
            code_bytes(weight_format, self.first, cols),
            scale_bytes(weight_format, self.first, cols),
        )

    def convert(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Codes and scales. Raises what `convert_rows` raises."""
        shape = (self.count, self.matrix.shape[1])
        return convert_rows(
            self.data, self.matrix.dtype, shape, self.matrix.weight_format, self.matrix.where
        )


def read_rows(checkpoint: Checkpoint, matrix: Matrix) -> Iterator[RawRows]:
    """All rows, about 8 MiB at a time. Raises CheckpointError or StorageError."""
    rows = matrix.shape[0]
    step = max(1, BLOCK_BYTES // matrix.row_bytes // ROW_BLOCK) * ROW_BLOCK
    for first in range(0, rows, step):
        count = min(step, rows - first)
        data = np.empty(count * matrix.row_bytes, np.uint8)
        checkpoint.read_into(matrix.file, matrix.offset + first * matrix.row_bytes, data.data)
        yield RawRows(matrix, first, count, data)
