"""A tensor of the checkpoint that a GGUF file was made of, computed from it some rows at a time.

Values are the converter's, undone: rows and columns go back to where they were, 1 is subtracted from norms. That is
exact for every norm weight w for which float32(1 + w) was. Quantized values are dequantized by the `gguf` package,
elementwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparseflow.checkpoint.gguf.header import StoredTensor
from sparseflow.checkpoint.gguf.names import Undo
from sparseflow.errors import CheckpointError, ConfigError

BLOCK_VALUES = 1 << 16
"""At most so many values are dequantized at a time, or one row: intermediate results then stay in a core's cache."""
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}

Fetch = Callable[[Path, int, memoryview], None]
"""Fills a buffer from a file's offset; as Checkpoint.read_into."""


@dataclass(frozen=True)
class VirtualTensor:
    """A tensor that exists when it is read."""

    parts: tuple[StoredTensor, ...]
    """Take turns: `part_rows` rows of each, then the next ones."""
    part_rows: int
    rows: int
    cols: int
    dtype: str
    """Of the values: F32, or F16 or BF16 where the stored ones are."""
    undo: Undo
    row_order: NDArray[np.intp] | None
    """Which stored row each row is; None: the same."""
    column_order: NDArray[np.intp] | None

    @property
    def row_bytes(self) -> int:
        """Of one row of values."""
        return self.cols * ITEM_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Of all values."""
        return self.rows * self.row_bytes

    def read_into(self, offset: int, buffer: memoryview, fetch: Fetch) -> None:
        """Fills `buffer` with the bytes of the values from `offset` on; from any number of threads.

        Raises CheckpointError for values that are not what they should be, and what `fetch` raises.
        """
        out = np.frombuffer(buffer, np.uint8)
        step = max(1, BLOCK_VALUES // self.cols)
        end = offset + len(buffer)
        for first in range(offset // self.row_bytes, -(-end // self.row_bytes), step):
            count = min(step, -(-end // self.row_bytes) - first)
            values = self._values(first, count, fetch)
            begin = first * self.row_bytes
            low, high = max(offset, begin), min(end, begin + values.size)
            out[low - offset : high - offset] = values[low - begin : high - begin]

    def _values(self, first: int, count: int, fetch: Fetch) -> NDArray[np.uint8]:
        """The bytes of some rows."""
        pieces = [self._decode(*run, fetch) for run in self._runs(first, count)]
        values = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        if self.column_order is not None:
            values = np.ascontiguousarray(values[:, self.column_order])
        where = f"{self.parts[0].file}: tensor {self.parts[0].name!r}"
        if self.undo is Undo.MINUS_ONE:
            values = values - np.float32(1)
        elif self.undo is Undo.DECAY_COLUMNS and not (values < 0).all():
            raise CheckpointError(f"{where} has a value that is not below 0; it holds -exp(A_log)")
        if self.dtype == "BF16" and values.dtype == np.float32:
            values = round_to_bf16(values, where)
        return values.reshape(-1).view(np.uint8)

    def _runs(self, first: int, count: int) -> Iterator[tuple[StoredTensor, int, int]]:
        """Stored rows in the order of ours: tensor, first row, number of rows."""
        if self.row_order is not None:
            order = self.row_order[first : first + count]
            cuts = np.flatnonzero(np.diff(order) != 1) + 1
            for run in np.split(order, cuts):
                yield self.parts[0], int(run[0]), len(run)
            return
        row, end = first, first + count
        while row < end:
            turn, within = divmod(row, self.part_rows)
            length = min(self.part_rows - within, end - row)
            round_, part = divmod(turn, len(self.parts))
            yield self.parts[part], round_ * self.part_rows + within, length
            row += length

    def _decode(self, stored: StoredTensor, first: int, count: int, fetch: Fetch) -> NDArray[Any]:
        """Stored rows as an array [count, cols]: bit patterns if they stay F16 or BF16, else float32."""
        raw = np.empty((count, stored.row_bytes), np.uint8)
        fetch(stored.file, stored.offset + first * stored.row_bytes, raw.reshape(-1).data)
        name = stored.type.name
        if name == self.dtype:
            return raw.view("<f4" if name == "F32" else "<u2")
        if name == "F32":
            return raw.view("<f4")
        if name == "F16":
            return raw.view("<f2").astype(np.float32)
        if name == "BF16":
            return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        return dequantize(raw, stored)


def dequantize(raw: NDArray[np.uint8], stored: StoredTensor) -> NDArray[np.float32]:
    """Rows of blocks [count, row_bytes] as float32 [count, cols]. A scale that is not finite gives values that are not;
    whoever converts them refuses them.
    """
    quants = import_gguf(stored.file)
    with np.errstate(all="ignore"):
        values = quants.quants.dequantize(raw, quants.GGMLQuantizationType(stored.type.number))
    return np.ascontiguousarray(values, np.float32).reshape(len(raw), stored.cols)


def import_gguf(path: Path) -> Any:
    """The `gguf` package. Raises ConfigError, naming the file that needs it, if it is not installed."""
    try:
        import gguf
    except ImportError:
        raise ConfigError(
            f"{path}: quantized GGUF files need the gguf package: pip install 'sparseflow[gguf]'"
        ) from None
    return gguf


def round_to_bf16(values: NDArray[np.float32], where: str) -> NDArray[np.uint16]:
    """BF16 bit patterns of the nearest values, ties to even. Raises CheckpointError for one that is not finite."""
    bits = values.view(np.uint32)
    if not np.isfinite(values).all():
        raise CheckpointError(f"{where} has a value that is not finite")
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)
