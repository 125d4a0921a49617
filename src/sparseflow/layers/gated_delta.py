"""The gated delta rule: a short causal convolution, then a matrix per head that every token decays
and corrects.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparseflow.layers.norm import RMSNorm
from sparseflow.layers.weights import WeightLoader
from sparseflow.native import _ext
from sparseflow.state.delta_state import DeltaState


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Sizes of a family's delta layers."""

    hidden_size: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    eps: float

    @property
    def conv_dim(self) -> int:
        """Channels of query, key and value together."""
        return 2 * self.num_key_heads * self.key_dim + self.value_rows

    @property
    def value_rows(self) -> int:
        return self.num_value_heads * self.value_dim


class GatedDelta:
    """x += out_proj(delta rule(in_proj(norm(x)))). The delta rule's own norm multiplies by the plain weight, then by
    silu(z).
    """

    def __init__(
        self,
        runtime: _ext.Runtime,
        weights: WeightLoader,
        prefix: str,
        norm: RMSNorm,
        shape: DeltaShape,
    ) -> None:
        self._runtime = runtime
        self._shape = shape
        hidden, heads = shape.hidden_size, shape.num_value_heads
        in_proj = [
            weights.matrix(f"{prefix}.in_proj_qkv.weight", (shape.conv_dim, hidden)),
            weights.matrix(f"{prefix}.in_proj_z.weight", (shape.value_rows, hidden)),
            weights.matrix(f"{prefix}.in_proj_b.weight", (heads, hidden)),
            weights.matrix(f"{prefix}.in_proj_a.weight", (heads, hidden)),
        ]
        out_proj = weights.matrix(f"{prefix}.out_proj.weight", (hidden, shape.value_rows))
        layer = _ext.DeltaLayer(
            num_key_heads=shape.num_key_heads,
            num_value_heads=heads,
            key_dim=shape.key_dim,
            value_dim=shape.value_dim,
            conv_weight=weights.vector(f"{prefix}.conv1d.weight", (shape.conv_dim, shape.kernel)),
            neg_exp_a=weights.vector(f"{prefix}.neg_exp_a", (heads,)),
            dt_bias=weights.vector(f"{prefix}.dt_bias", (heads,)),
            norm_weight=weights.vector(f"{prefix}.norm.weight", (shape.value_dim,)),
            eps=shape.eps,
            scale=1.0 / math.sqrt(shape.key_dim),
        )
        self._block = _ext.DeltaBlock(norm.weight, norm.eps, in_proj, layer, out_proj)

    def new_state(self) -> DeltaState:
        shape = self._shape
        conv_shape = (shape.conv_dim, shape.kernel - 1)
        return DeltaState(shape.num_value_heads, shape.key_dim, shape.value_dim, conv_shape)

    def forward(self, x: NDArray[np.float32], state: DeltaState) -> None:
        """Updates x [n_tokens, hidden_size] in place; `state` moves on by n_tokens."""
        self._block.forward(self._runtime, x, state.conv_tail, state.matrices)
