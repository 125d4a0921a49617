"""Attention with per-head query and key norms and a sigmoid gate on the output."""

from __future__ import annotations

from sparseflow.layers.attention import Attention, AttentionShape
from sparseflow.layers.norm import RMSNorm
from sparseflow.layers.weights import WeightLoader
from sparseflow.native import _ext


class GatedAttention(Attention):
    """q_proj gives, for every head, head_dim channels of query and then head_dim of gate. Norms
    multiply by 1 + w.
    """

    def __init__(
        self,
        runtime: _ext.Runtime,
        weights: WeightLoader,
        prefix: str,
        norm: RMSNorm,
        shape: AttentionShape,
    ) -> None:
        dim = (shape.head_dim,)
        q_norm = weights.one_plus_vector(f"{prefix}.q_norm.weight", dim)
        k_norm = weights.one_plus_vector(f"{prefix}.k_norm.weight", dim)
        super().__init__(
            runtime, weights, prefix, norm, shape, head_norms=(q_norm, k_norm), is_gated=True
        )
