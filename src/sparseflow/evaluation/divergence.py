"""How far one model's next-token distributions are from another's: Kullback-Leibler divergence and agreement."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparseflow.errors import ConfigError

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Over `num_tokens` positions."""

    kl: float
    """Mean of KL(reference || other), nats."""
    kl_error: float
    """Standard error of that mean, as if positions were independent."""
    top1: float
    """Share of positions whose likeliest token is the same."""
    num_tokens: int

    def to_dict(self) -> dict[str, float | int]:
        return {
            "kl": self.kl,
            "kl_error": self.kl_error,
            "top1": self.top1,
            "num_tokens": self.num_tokens,
        }


def measure(pairs: Iterable[tuple[Logits, Logits]]) -> Divergence:
    """From pairs (reference, other) of logits [n, vocab_size] of the same positions.

    Raises ConfigError for pairs of different shapes or without a position.
    """
    divergences: list[NDArray[np.float64]] = []
    num_equal = 0
    for reference, other in pairs:
        if reference.shape != other.shape:
            raise ConfigError(f"logits {reference.shape} and {other.shape} cannot be compared")
        divergences.append(token_divergences(reference, other))
        num_equal += int((reference.argmax(axis=1) == other.argmax(axis=1)).sum())
    values = np.concatenate(divergences) if divergences else np.empty(0)
    if not values.size:
        raise ConfigError("a divergence needs one position at least")
    mean = math.fsum(values) / values.size
    error = float(values.std()) / math.sqrt(values.size)
    return Divergence(mean, error, num_equal / values.size, values.size)


def token_divergences(reference: Logits, other: Logits) -> NDArray[np.float64]:
    """KL(reference || other) of each row of logits [n, vocab_size], nats, in float64."""
    p, q = _log_softmax(reference), _log_softmax(other)
    result: NDArray[np.float64] = (np.exp(p) * (p - q)).sum(axis=1)
    return result


def _log_softmax(logits: Logits) -> NDArray[np.float64]:
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return result
