"""Some rows of a matrix at a time, read from the checkpoint and converted, so that no matrix is in memory whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.container.matrix_formats import convert_rows
from sparseflow.container.matrix_sizes import ROW_BLOCK, code_bytes, scale_bytes

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
class Rows:
    """Rows of a matrix from `first` on, a multiple of 16."""

    matrix: Matrix
    first: int
    count: int

    @property
    def offsets(self) -> tuple[int, int]:
        """Where codes and scales of these rows begin among those of the matrix."""
        weight_format, cols = self.matrix.weight_format, self.matrix.shape[1]
        return (
            code_bytes(weight_format, self.first, cols),
            scale_bytes(weight_format, self.first, cols),
        )

    def read(self, checkpoint: Checkpoint) -> NDArray[np.uint8]:
        """As the checkpoint has them. Raises CheckpointError or StorageError."""
        matrix = self.matrix
        data = np.empty(self.count * matrix.row_bytes, np.uint8)
        offset = matrix.offset + self.first * matrix.row_bytes
        checkpoint.read_into(matrix.file, offset, data.data)
        return data

    def convert(self, checkpoint: Checkpoint) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Codes and scales. Raises what `read` and `convert_rows` raise."""
        matrix = self.matrix
        shape = (self.count, matrix.shape[1])
        data = self.read(checkpoint)
        return convert_rows(data, matrix.dtype, shape, matrix.weight_format, matrix.where)


def split_rows(matrix: Matrix) -> Iterator[Rows]:
    """All rows, about 8 MiB at a time."""
    rows = matrix.shape[0]
    step = max(1, BLOCK_BYTES // matrix.row_bytes // ROW_BLOCK) * ROW_BLOCK
    for first in range(0, rows, step):
        yield Rows(matrix, first, min(step, rows - first))
