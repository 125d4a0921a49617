"""Qwen3.5 and Qwen3.6 mixture-of-experts language models: gated-delta and gated-attention layers,
each with experts.

Text only: with equal positions in all three sections, its multi-axis rotary embedding is the plain
one.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sparseflow.layers.attention import AttentionShape
from sparseflow.layers.gated_attention import GatedAttention
from sparseflow.layers.gated_delta import DeltaShape, GatedDelta
from sparseflow.layers.linear import Linear
from sparseflow.layers.moe import MoeLayer, MoeShape
from sparseflow.layers.norm import RMSNorm
from sparseflow.layers.tiles import tiles
from sparseflow.layers.weights import WeightLoader
from sparseflow.models.base import IdArray, LayerProgress, LogitsWanted, Model, ModelParts
from sparseflow.models.qwen3_5_moe_config import Qwen3_5MoeConfig
from sparseflow.state.delta_state import DeltaState
from sparseflow.state.kv_cache import KVCache
from sparseflow.state.sequence_state import SequenceState


class Qwen3_5Moe(Model):  # noqa: N801 - the family's name
    """Norms multiply by 1 + w, except the delta layers' output norm."""

    def __init__(self, parts: ModelParts) -> None:
        config = Qwen3_5MoeConfig.from_dict(parts.container.config)
        weights = WeightLoader(parts.container, parts.progress)
        self._parts = parts
        self._config = config
        self._layers = [
            _DecoderLayer(parts, weights, config, i) for i in range(config.num_hidden_layers)
        ]
        for layer, following in pairwise(self._layers):
            layer.look_ahead_to(following)
        self._norm = _norm(parts, weights, "norm.weight", config)
        head = weights.matrix("lm_head.weight", (config.vocab_size, config.hidden_size))
        self._lm_head = Linear(parts.runtime, [head], "head")
        self.vocab_size = config.vocab_size
        self.max_position = config.max_position_embeddings
        self.dense_bytes = weights.loaded_bytes

    def new_state(self, capacity: int) -> SequenceState:
        return SequenceState([layer.new_state(capacity) for layer in self._layers], capacity)

    def forward(
        self,
        ids: IdArray,
        state: SequenceState,
        logits: LogitsWanted = "last",
        on_layer: LayerProgress | None = None,
    ) -> NDArray[np.float32] | None:
        with state.step(len(ids)) as position:
            x = self._embed(ids)
            for index, layer in enumerate(self._layers):
                layer.forward(x, state.layers[index], position)
                if on_layer is not None:
                    on_layer(index + 1, len(self._layers))
            # The state has moved on only once its context ends.
            return self._head(x, logits)

    def _embed(self, ids: IdArray) -> NDArray[np.float32]:
        rows = self._parts.container.embedding_rows(ids)
        x = np.empty((len(ids), self._config.hidden_size), dtype=np.float32)
        self._parts.runtime.bf16_to_float(rows, x)
        return x

    def _head(self, x: NDArray[np.float32], logits: LogitsWanted) -> NDArray[np.float32] | None:
        if logits == "none":
            return None
        rows = x if logits == "all" else np.ascontiguousarray(x[-1:])
        return self._lm_head.forward(self._norm.forward(rows))[0]


class _DecoderLayer:
    """x += mixer(norm(x)); x += experts(norm(x))."""

    def __init__(
        self, parts: ModelParts, weights: WeightLoader, config: Qwen3_5MoeConfig, index: int
    ) -> None:
        prefix = f"layers.{index}"
        runtime = parts.runtime
        self._parts = parts
        norm = _norm(parts, weights, f"{prefix}.input_layernorm.weight", config)
        self._mixer: GatedAttention | GatedDelta
        if config.layer_types[index] == "full_attention":
            self._mixer = GatedAttention(
                runtime, weights, f"{prefix}.self_attn", norm, _attention_shape(config)
            )
        else:
            self._mixer = GatedDelta(
                runtime, weights, f"{prefix}.linear_attn", norm, _delta_shape(config)
            )
        norm = _norm(parts, weights, f"{prefix}.post_attention_layernorm.weight", config)
        self._experts = MoeLayer(runtime, weights, index, f"{prefix}.mlp", norm, _moe_shape(config))

    def look_ahead_to(self, following: _DecoderLayer) -> None:
        steps = bool(self._parts.lookahead)
        self._experts.look_ahead_to(following._experts, guesses_steps=steps)

    def new_state(self, capacity: int) -> KVCache | DeltaState:
        if isinstance(self._mixer, GatedAttention):
            return self._mixer.new_state(capacity, self._parts.kv_format)
        return self._mixer.new_state()

    def forward(self, x: NDArray[np.float32], state: KVCache | DeltaState, position: int) -> None:
        """Updates x [n_tokens, hidden_size] in place."""
        for tile in tiles(len(x)):
            if isinstance(self._mixer, GatedAttention):
                assert isinstance(state, KVCache)
                self._mixer.forward(x[tile], state, position + tile.start)
            else:
                assert isinstance(state, DeltaState)
                self._mixer.forward(x[tile], state)
        self._experts.forward(x, self._parts.store)


def _norm(parts: ModelParts, weights: WeightLoader, name: str, config: Qwen3_5MoeConfig) -> RMSNorm:
    weight = weights.one_plus_vector(name, (config.hidden_size,))
    return RMSNorm(parts.runtime, weight, config.rms_norm_eps)


def _attention_shape(config: Qwen3_5MoeConfig) -> AttentionShape:
    return AttentionShape(
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rotary_dim=config.rotary_dim,
        eps=config.rms_norm_eps,
    )


def _delta_shape(config: Qwen3_5MoeConfig) -> DeltaShape:
    return DeltaShape(
        hidden_size=config.hidden_size,
        num_key_heads=config.linear_num_key_heads,
        num_value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        kernel=config.linear_conv_kernel_dim,
        eps=config.rms_norm_eps,
    )


def _moe_shape(config: Qwen3_5MoeConfig) -> MoeShape:
    return MoeShape(
        hidden_size=config.hidden_size,
        num_experts=config.num_experts,
        num_experts_per_tok=config.num_experts_per_tok,
        shared_expert_intermediate_size=config.shared_expert_intermediate_size,
    )
