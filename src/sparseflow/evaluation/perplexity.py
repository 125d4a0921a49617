"""Perplexity of a model on a text, in windows that do not overlap. Deterministic: the same bits give the same sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sparseflow.errors import ConfigError


class Scorer(Protocol):
    """What perplexity needs of an engine."""

    def iter_logits(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]: ...


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Natural-log loss over `num_tokens` predicted tokens; the first token of each window is given, not predicted."""

    nats: float
    num_tokens: int
    window: int

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.num_tokens

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats_per_token)

    def to_dict(self) -> dict[str, float | int]:
        return {
            "num_tokens": self.num_tokens,
            "window": self.window,
            "nats_per_token": self.nats_per_token,
            "perplexity": self.perplexity,
        }


def measure(
    engine: Scorer,
    ids: Sequence[int],
    window: int,
    progress: Callable[[str, int, int], None] | None = None,
) -> Perplexity:
    """Predicts every token of `ids` but the first of each window.

    Raises ConfigError for a window or a text of less than two tokens.
    """
    if window < 2 or len(ids) < 2:
        raise ConfigError(f"perplexity needs two tokens at least; window {window}, text {len(ids)}")
    losses: list[float] = []
    num_tokens = 0
    for start in range(0, len(ids), window):
        part = ids[start : start + window]
        if len(part) > 1:
            losses.append(_window_nats(engine, part))
            num_tokens += len(part) - 1
        if progress is not None:
            progress("perplexity", start + len(part), len(ids))
    return Perplexity(math.fsum(losses), num_tokens, window)


def _window_nats(engine: Scorer, ids: Sequence[int]) -> float:
    """Sum of -log p(ids[i + 1] | ids[..i]) over one window, in float64."""
    position = 0
    losses: list[float] = []
    for logits in engine.iter_logits(ids):  # [n, vocab_size] float32
        targets = np.asarray(ids[position + 1 : position + 1 + len(logits)], dtype=np.int64)
        losses.append(_nats(logits[: len(targets)], targets))
        position += len(logits)
    return math.fsum(losses)


def _nats(logits: NDArray[np.float32], targets: NDArray[np.int64]) -> float:
    rows = logits.astype(np.float64)
    peak = rows.max(axis=1)
    log_sum = peak + np.log(np.exp(rows - peak[:, None]).sum(axis=1))
    return math.fsum(log_sum - rows[np.arange(len(targets)), targets])
