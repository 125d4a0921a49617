"""One mixture-of-experts layer: the router and the shared expert are here, the routed experts in
an ExpertStore.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

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
    """x += experts(norm(x)). `layer` is the index by which the store knows this layer's experts."""

    def __init__(
        self,
        runtime: _ext.Runtime,
        weights: WeightLoader,
        layer: int,
        prefix: str,
        norm: RMSNorm,
        shape: MoeShape,
    ) -> None:
        self._runtime = runtime
        self._layer = layer
        self._k = shape.num_experts_per_tok
        gate = weights.matrix(f"{prefix}.gate.weight", (shape.num_experts, shape.hidden_size))
        self._router = _ext.Router(norm.weight, norm.eps, gate)
        self._shared = _shared_expert(weights, prefix, shape)
        self._ahead: _ext.LookAhead | None = None

    def look_ahead_to(self, following: MoeLayer, *, guesses_steps: bool) -> None:
        """From now on guesses what `following` will choose, so that it is read in time: of prompts, and if asked of
        single steps.
        """
        self._ahead = _ext.LookAhead(following._layer, following._router, guesses_steps)

    def forward(self, x: NDArray[np.float32], store: ExpertStore) -> None:
        """Updates x [n_tokens, hidden_size] in place. Raises StorageError if an expert cannot be read."""
        normed = np.empty_like(x)
        topk_ids = np.empty((len(x), self._k), dtype=np.int32)
        topk_weights = np.empty((len(x), self._k), dtype=np.float32)
        for tile in tiles(len(x)):
            self._router.forward(
                self._runtime, x[tile], normed[tile], topk_ids[tile], topk_weights[tile]
            )
        store.compute(self._layer, normed, topk_ids, topk_weights, self._shared, x, self._ahead)


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
