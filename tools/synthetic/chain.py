"""One long chain of tokens: what their embeddings are, so that routing behaves like a real model's, and the rows of the
head, so that greedy decoding walks the chain.

Half of the vocabulary, in random order, is the chain; the other half are rivals, one for each link. The embedding of
the chain's i-th token mixes a private vector, a slowly moving one and a constant one. The next token's row of the head
is aligned with the private vector, and so, equally, is its rival's; they differ only in channels that the blocks write.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthetic.levels import GROUP, HEAD_WEIGHT, RMS
from synthetic.pool import Pool, to_bf16
from synthetic.signal import F32, Signal

PRIVATE, SLOW, SHARED = 0.18, 0.46, 0.36
"""Shares of an embedding's variance."""
COEFFICIENT = 0.82
"""Of the slow component, a first-order autoregressive process along the chain."""
WARM_UP = 40
STRIDE = 16
HEAD_SCALE = 82.0
"""Of a row of the head, over the number of its random channels: right candidates get logits of about 30."""
PRIVATE_LANE, SLOW_LANE, SHARED_LANE = 1, 2, 3

Ids = NDArray[np.int64]


class Chain:
    """The chain of a configuration; every method may be called from several threads."""

    def __init__(self, config: dict[str, Any], pool: Pool, signal: Signal, seed: int) -> None:
        vocab_size = config["vocab_size"]
        self.length = vocab_size // 2
        random = np.random.Generator(np.random.Philox(key=[seed, 2]))
        order = random.permutation(vocab_size)
        self.ids: Ids = order[: self.length]
        """Token ids along the chain."""
        self.rivals: Ids = order[self.length : 2 * self.length]
        """rivals[i] competes with ids[i]."""
        self._places = np.empty(vocab_size, np.int64)
        self._places[order] = np.arange(vocab_size)
        self._pool, self._signal = pool, signal
        self._width = signal.first
        self._shared = pool.rows(np.zeros(1, np.int64), SHARED_LANE, self._width)[0]
        self._marks = self._slow_marks()

    def document(self) -> dict[str, list[int]]:
        """chain.json: the ids, and the positions in them that are decided by what the blocks write: all but the
        first, as an expert may serve a single token.
        """
        return {"ids": self.ids.tolist(), "decided": list(range(1, self.length))}

    def embedding_rows(self, begin: int, end: int) -> NDArray[np.uint16]:
        """BF16 [end - begin, hidden_size] of the token ids from `begin` on. All rows have the same norm."""
        places = self._places[begin:end]
        rows = np.empty((end - begin, self._signal.hidden), np.float32)
        mixed = rows[:, : self._width]
        mixed[:] = np.float32(PRIVATE**0.5) * self._pool.rows(places, PRIVATE_LANE, self._width)
        mixed += np.float32(SLOW**0.5) * self.slow(places % self.length)
        mixed += np.float32(SHARED**0.5) * self._shared
        mixed *= self._random_norm / np.linalg.norm(mixed, axis=1, keepdims=True)
        rows[:, self._width :] = self._signal.embedding
        return to_bf16(rows)

    def head_rows(self, begin: int, end: int) -> NDArray[np.uint16]:
        """BF16 [end - begin, hidden_size] of the token ids from `begin` on."""
        places = self._places[begin:end]
        rows = np.zeros((end - begin, self._signal.hidden), np.float32)
        before = (places % self.length - 1) % self.length
        rows[:, : self._width] = self._pool.rows(before, PRIVATE_LANE, self._width)
        rows *= np.float32(HEAD_SCALE / self._width)
        sign = np.where(places < self.length, np.float32(1), np.float32(-1))
        rows[:, -GROUP:] = np.float32(HEAD_WEIGHT) * sign[:, None]
        return to_bf16(rows)

    def slow(self, positions: Ids) -> F32:
        """The slow component at chain positions, float32 [len(positions), width], of deviation 1."""
        values = self._marks[positions // STRIDE].copy()
        steps = positions % STRIDE
        for step in range(1, STRIDE):
            rows = np.flatnonzero(steps >= step)
            values[rows] = self._moved(values[rows], positions[rows] - steps[rows] + step)
        return values

    def _moved(self, values: F32, positions: Ids) -> F32:
        noise = self._pool.rows(positions + WARM_UP, SLOW_LANE, self._width)
        noise *= np.float32((1 - COEFFICIENT**2) ** 0.5)
        return np.float32(COEFFICIENT) * values + noise

    def _slow_marks(self) -> F32:
        """The slow component at every 16th position."""
        marks = np.empty((-(-self.length // STRIDE), self._width), np.float32)
        value = np.zeros((1, self._width), np.float32)
        for position in range(-WARM_UP, self.length):
            value = self._moved(value, np.array([position]))
            if position >= 0 and position % STRIDE == 0:
                marks[position // STRIDE] = value[0]
        return marks

    @property
    def _random_norm(self) -> np.float32:
        """Of the part of an embedding that is not reserved, so that the whole has the size that is asked for."""
        reserved = float(np.square(self._signal.embedding, dtype=np.float64).sum())
        return np.float32((RMS**2 * self._signal.hidden - reserved) ** 0.5)
