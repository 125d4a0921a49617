"""One fixed array of seeded Gaussian BF16 values; matrices are windows of it, so that 32 G weights cost no more than
copying them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 256
"""Windows of matrices begin at multiples of this, so that quantized blocks of the pool are those of the matrix."""
DEVIATION = 2048**-0.5
_MULTIPLIER = 0x9E3779B1
_BLOCK_VALUES = 1 << 21


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    return (
        (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    ).astype(np.uint16)


def widen(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """BF16 bit patterns as float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


class Pool:
    """`size` values (a power of two), and after them the first `longest` again, so that a window may begin anywhere."""

    def __init__(self, seed: int, size: int, longest: int) -> None:
        assert size & (size - 1) == 0
        self._places = size // ALIGNMENT
        self._shift = int(np.random.Generator(np.random.Philox(key=seed)).integers(self._places))
        self.bits = np.empty(size + longest, np.uint16)
        random = np.random.Generator(np.random.Philox(key=[seed, 1]))
        for begin in range(0, size, _BLOCK_VALUES):
            count = min(_BLOCK_VALUES, size - begin)
            values = random.standard_normal(count, np.float32) * np.float32(DEVIATION)
            self.bits[begin : begin + count] = to_bf16(values)
        self.bits[size:] = self.bits[:longest]

    def offset(self, index: int, lane: int = 0) -> int:
        """Where window number `index` begins: other numbers, other places.

        Lane 0 is for matrices; lanes 1 to 3, at 64, 128 and 192 beyond the alignment, never coincide with a row of one.
        Raises ValueError if there are not as many places.
        """
        return int(self.offsets(np.array([index], np.int64), lane)[0])

    def offsets(self, indices: NDArray[np.int64], lane: int = 0) -> NDArray[np.int64]:
        """`offset` of many."""
        if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < self._places:
            raise ValueError(
                f"window {int(indices.max())}: the pool has {self._places} places; make it larger"
            )
        places = (indices * _MULTIPLIER + self._shift) % self._places
        return places * ALIGNMENT + 64 * lane

    def rows(self, indices: NDArray[np.int64], lane: int, width: int) -> NDArray[np.float32]:
        """Windows of `width` values as float32 [len(indices), width], of deviation 1."""
        places = self.offsets(indices, lane)[:, None] + np.arange(width)
        return widen(self.bits[places]) * np.float32(1 / DEVIATION)
