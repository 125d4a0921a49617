"""One mixture-of-experts layer: the router and the shared expert are here, the routed experts in
an ExpertStore.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sparseflow.layers.linear import Linear
from sparseflow.layers.norm import RMSNorm
from sparseflow.layers.tiles import tiles
from sparseflow.layers.weights import WeightLoader
from sparseflow.native import _ext

if TYPE_CHECKING:
    from sparseflow.experts.store import ExpertStore


@dataclass(frozen=True, slots=True)
class MoeShape:
    """Sizes of a family's mixture layers."""

    hidden_size: int
    num_experts: int
    num_experts_per_tok: int
    shared_expert_intermediate_size: int | None = None
    """None: the family has no shared expert."""


class MoeLayer:
    """`layer` is the index by which the store knows this layer's experts."""

    def __init__(
        self, runtime: _ext.Runtime, weights: WeightLoader, layer: int, prefix: str, shape: MoeShape
    ) -> None:
        self._runtime = runtime
        self._layer = layer
        self._shape = shape
        self._router = weights.matrix(
            f"{prefix}.gate.weight", (shape.num_experts, shape.hidden_size)
        )
        self._gate = Linear(runtime, [self._router], "router")
        self._shared = _shared_expert(weights, prefix, shape)
        self._ahead: _ext.LookAhead | None = None

    def look_ahead_to(self, following: MoeLayer, norm: RMSNorm) -> None:
        """From now on guesses what `following` will choose, whose input goes through `norm`."""
        self._ahead = _ext.LookAhead(following._layer, norm.weight, norm.eps, following._router)

    def forward(
        self, x: NDArray[np.float32], store: ExpertStore, residual: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """x [n_tokens, hidden_size], the norm of `residual` -> the same shape. Raises StorageError
        if an expert cannot be read.
        """
        k = self._shape.num_experts_per_tok
        topk_ids = np.empty((x.shape[0], k), dtype=np.int32)
        topk_weights = np.empty((x.shape[0], k), dtype=np.float32)
        for tile in tiles(len(x)):
            logits = self._gate.forward(x[tile])[0]
            self._runtime.route(logits, k, topk_ids[tile], topk_weights[tile])
        out = np.empty_like(x)
        chosen = (topk_ids, topk_weights)
        store.compute(self._layer, x, *chosen, self._shared, out, self._ahead, residual)
        return out


def _shared_expert(weights: WeightLoader, prefix: str, shape: MoeShape) -> _ext.SharedExpert | None:
    hidden, shared = shape.hidden_size, shape.shared_expert_intermediate_size
    if shared is None:
        return None
    return _ext.SharedExpert(
        weights.matrix(f"{prefix}.shared_expert.gate_proj.weight", (shared, hidden)),
        weights.matrix(f"{prefix}.shared_expert.up_proj.weight", (shared, hidden)),
        weights.matrix(f"{prefix}.shared_expert.down_proj.weight", (hidden, shared)),
        weights.matrix(f"{prefix}.shared_expert_gate.weight", (1, hidden)),
    )
