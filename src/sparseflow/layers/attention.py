"""Causal attention with rotary positions over grouped keys and values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparseflow.layers.norm import RMSNorm
from sparseflow.layers.weights import WeightLoader
from sparseflow.native import _ext
from sparseflow.state.kv_cache import KVCache, KVFormat


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes of a family's attention layers."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    eps: float


HeadNorms = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Weights [head_dim] of the norms of each head's query and key."""


class Attention:
    """x += o_proj(attention(norm(x))). q_proj gives head_dim channels for every head; twice as many if it is gated."""

    def __init__(
        self,
        runtime: _ext.Runtime,
        weights: WeightLoader,
        prefix: str,
        norm: RMSNorm,
        shape: AttentionShape,
        *,
        head_norms: HeadNorms | None = None,
        is_gated: bool = False,
    ) -> None:
        self._runtime = runtime
        self._shape = shape
        hidden, dim = shape.hidden_size, shape.head_dim
        query_rows, kv_rows = shape.num_heads * dim, shape.num_kv_heads * dim
        in_proj = [
            weights.matrix(f"{prefix}.q_proj.weight", ((1 + is_gated) * query_rows, hidden)),
            weights.matrix(f"{prefix}.k_proj.weight", (kv_rows, hidden)),
            weights.matrix(f"{prefix}.v_proj.weight", (kv_rows, hidden)),
        ]
        o_proj = weights.matrix(f"{prefix}.o_proj.weight", (hidden, query_rows))
        q_norm, k_norm = head_norms or (None, None)
        layer = _ext.AttentionLayer(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=dim,
            scale=1.0 / math.sqrt(dim),
            inv_freq=weights.vector("rotary.inv_freq", (shape.rotary_dim // 2,)),
            q_norm=q_norm,
            k_norm=k_norm,
            eps=shape.eps,
            gated=is_gated,
        )
        self._block = _ext.AttentionBlock(norm.weight, norm.eps, in_proj, layer, o_proj)

    def new_state(self, capacity: int, kv_format: KVFormat) -> KVCache:
        return KVCache(self._shape.num_kv_heads, capacity, self._shape.head_dim, kv_format)

    def forward(self, x: NDArray[np.float32], state: KVCache, position: int) -> None:
        """Updates x [n_tokens, hidden_size], whose first token is at `position`, in place; appends to `state`."""
        self._block.forward(self._runtime, x, position, state.keys, state.values)
