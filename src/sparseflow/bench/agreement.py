"""How close a recipe stays to the bf16 recipe of the same weights: routed ids and logits, teacher-forced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparseflow.config import EngineConfig
from sparseflow.engine.engine import Engine
from sparseflow.evaluation.divergence import token_divergences
from sparseflow.planning.budget import settle

CHUNK = 64
"""Tokens at a time: their logits of a large vocabulary fit beside a model."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What one container computed for some ids."""

    logits: NDArray[np.float32]  # [tokens, vocab_size]
    routes: dict[int, NDArray[np.int32]]  # by layer, [tokens, experts per token], ascending


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of one container with a reference."""

    num_tokens: int
    layer_shares: tuple[float, ...]
    """Share of the reference's choices that are the same, by layer."""
    mean_kl: float
    """Mean over tokens of KL(reference || container), in nats."""
    same_argmax: float
    """Share of tokens with the same likeliest next id."""

    @property
    def worst_share(self) -> float:
        return min(self.layer_shares)

    def to_dict(self) -> dict[str, Any]:
        return {
            "num_tokens": self.num_tokens,
            "layer_shares": list(self.layer_shares),
            "worst_share": self.worst_share,
            "mean_kl": self.mean_kl,
            "same_argmax": self.same_argmax,
        }


def compare_with_reference(
    container: Path, reference: Path, ids: Sequence[int], config: EngineConfig
) -> Agreement:
    """Runs one container after the other. Raises what opening and running them raises."""
    return agree(trace(reference, ids, config), trace(container, ids, config))


def trace(container: Path, ids: Sequence[int], config: EngineConfig) -> Trace:
    """Logits after every id and what each layer's router chose."""
    settled, _ = settle(container, config)
    chosen: dict[int, list[NDArray[np.int32]]] = {}
    with Engine.open(container, settled) as engine:
        engine.store.observer = lambda layer, rows: chosen.setdefault(layer, []).append(rows)
        logits = np.concatenate(list(engine.iter_logits(ids, CHUNK)))
    routes = {layer: np.sort(np.concatenate(parts), axis=1) for layer, parts in chosen.items()}
    return Trace(logits, routes)


def agree(reference: Trace, found: Trace) -> Agreement:
    """REQUIRES: the same ids, the same geometry."""
    shares = tuple(
        same_choices(reference.routes[layer], found.routes[layer])
        for layer in sorted(reference.routes)
    )
    divergences = token_divergences(reference.logits, found.logits)
    same = reference.logits.argmax(axis=1) == found.logits.argmax(axis=1)
    return Agreement(len(same), shares, float(divergences.mean()), float(same.mean()))


def same_choices(reference: NDArray[np.int32], found: NDArray[np.int32]) -> float:
    """Share of the entries of reference [tokens, k] that are in the same row of found, in any order."""
    return float((reference[:, :, None] == found[:, None, :]).any(axis=2).mean())
