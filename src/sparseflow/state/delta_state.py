"""The recurrent state of one gated-delta layer of one sequence: constant in size, overwritten by
every token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DeltaSnapshot:
    """Copies; immutable."""

    matrices: NDArray[np.float32]  # [num_value_heads, key_dim, value_dim]
    conv_tail: NDArray[np.float32]  # [conv_dim, kernel - 1]


class DeltaState:
    """A float32 matrix per value head and the last inputs of the short convolution, oldest
    first.
    """

    def __init__(
        self, num_value_heads: int, key_dim: int, value_dim: int, conv_shape: tuple[int, int]
    ) -> None:
        """conv_shape: (conv_dim, kernel - 1)."""
        self.matrices: NDArray[np.float32] = np.zeros(
            (num_value_heads, key_dim, value_dim), dtype=np.float32
        )
        self.conv_tail: NDArray[np.float32] = np.zeros(conv_shape, dtype=np.float32)

    @property
    def nbytes(self) -> int:
        return self.matrices.nbytes + self.conv_tail.nbytes

    def reset(self) -> None:
        """The state before the first token."""
        self.matrices[...] = 0.0
        self.conv_tail[...] = 0.0

    def snapshot(self, num_tokens: int) -> DeltaSnapshot:  # noqa: ARG002 - the same face as KVCache
        return DeltaSnapshot(self.matrices.copy(), self.conv_tail.copy())

    def restore(self, snapshot: DeltaSnapshot) -> None:
        self.matrices[...] = snapshot.matrices
        self.conv_tail[...] = snapshot.conv_tail
