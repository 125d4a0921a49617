"""How the chain's tokens route, beside what was seen of the real model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthetic.layout import PREFIX, Tensor
from synthetic.levels import RMS
from synthetic.pool import widen
from synthetic.weights import ChainWeights

PROMPT_TOKENS, DECODE_TOKENS = 25, 155

Choices = NDArray[np.intp]
"""Expert ids [tokens, num_experts_per_tok] of one layer."""


@dataclass(frozen=True)
class Fact:
    """One figure, and the range in which the real model's lies."""

    name: str
    value: float
    low: float
    high: float


def routing_facts(weights: ChainWeights, config: dict[str, Any], begin: int = 0) -> list[Fact]:
    """Means over layers, of 25 prompt tokens and 155 more from chain position `begin` on.

    Routers see the embedding alone here: what blocks add to it is small.
    """
    layers = _choices(weights, config, begin)
    num_experts = config["num_experts"]

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    lags = {lag: mean(_overlap(ids, lag) for ids in layers) for lag in (1, 8)}
    misses = {
        share: mean(_lru_misses(ids, round(share / 100 * num_experts)) for ids in layers)
        for share in (13.3, 25.0)
    }
    touched = mean(len(np.unique(ids[:PROMPT_TOKENS])) / num_experts for ids in layers)
    return [
        Fact("overlap of consecutive tokens", lags[1], 0.33, 0.43),
        Fact("overlap at lag 8", lags[8], 0.17, 0.27),
        Fact("LRU misses at a capacity of 13.3 %", misses[13.3], 0.29, 0.35),
        Fact("LRU misses at a capacity of 25 %", misses[25.0], 0.17, 0.23),
        Fact("experts touched by 25 tokens", touched, 0.23, 0.29),
    ]


def _choices(weights: ChainWeights, config: dict[str, Any], begin: int) -> list[Choices]:
    ids = weights.chain.ids[begin : begin + PROMPT_TOKENS + DECODE_TOKENS]
    rows = [weights.chain.embedding_rows(i, i + 1)[0] for i in ids.tolist()]
    hidden = widen(np.stack(rows)) / np.float32(RMS)
    layers = []
    for layer in range(config["num_hidden_layers"]):
        prefix = f"{PREFIX}layers.{layer}."
        norm = _values(weights, prefix + "post_attention_layernorm.weight", hidden.shape[1:])
        shape = (config["num_experts"], hidden.shape[1])
        logits = hidden * (1 + norm) @ _values(weights, prefix + "mlp.gate.weight", shape).T
        layers.append(np.argsort(-logits, axis=1)[:, : config["num_experts_per_tok"]])
    return layers


def _values(weights: ChainWeights, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    bits = weights.read(Tensor(name, shape), 0, int(np.prod(shape)))
    return widen(bits).reshape(shape)


def _overlap(ids: Choices, lag: int) -> float:
    """The share of a token's experts that the one `lag` before it chose too; decode tokens."""
    shared = [len(np.intersect1d(ids[t], ids[t - lag])) for t in range(PROMPT_TOKENS, len(ids))]
    return float(np.mean(shared) / ids.shape[1])


def _lru_misses(ids: Choices, capacity: int) -> float:
    """The share of decode choices that are not cached, after the prompt was admitted in row order."""
    cached: dict[int, None] = {}
    misses = 0
    for token, chosen in enumerate(ids.tolist()):
        for expert in sorted(chosen):
            misses += token >= PROMPT_TOKENS and expert not in cached
            cached.pop(expert, None)
            cached[expert] = None
            if len(cached) > capacity:
                del cached[next(iter(cached))]
    return float(misses / ids[PROMPT_TOKENS:].size)
