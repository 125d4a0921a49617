"""Keys and values of one attention layer of one sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

KVFormat = Literal["float32", "float16"]


@dataclass(frozen=True, slots=True)
class KVSnapshot:
    """Copies of the first `num_tokens` keys and values; immutable."""

    keys: NDArray[Any]  # [num_kv_heads, num_tokens, head_dim]
    values: NDArray[Any]  # [num_kv_heads, num_tokens, head_dim]


class KVCache:
    """Room for `capacity` tokens. The pages are zero-filled by the system and cost memory only
    once they are written.
    """

    def __init__(
        self, num_kv_heads: int, capacity: int, head_dim: int, kv_format: KVFormat
    ) -> None:
        shape = (num_kv_heads, capacity, head_dim)
        self.keys: NDArray[Any] = np.zeros(shape, dtype=kv_format)
        self.values: NDArray[Any] = np.zeros(shape, dtype=kv_format)

    @property
    def nbytes(self) -> int:
        """Bytes at full capacity."""
        return self.keys.nbytes + self.values.nbytes

    def reset(self) -> None:
        """Nothing to clear: attention reads the keys before the sequence's position only, and
        writes them first.
        """

    def snapshot(self, num_tokens: int) -> KVSnapshot:
        return KVSnapshot(self.keys[:, :num_tokens].copy(), self.values[:, :num_tokens].copy())

    def restore(self, snapshot: KVSnapshot) -> None:
        num_tokens = snapshot.keys.shape[1]
        self.keys[:, :num_tokens] = snapshot.keys
        self.values[:, :num_tokens] = snapshot.values
