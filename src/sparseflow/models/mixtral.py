"""Mixtral mixture-of-experts language models: plain attention and experts in every layer, no shared
expert.

The published router takes the softmax over all experts and divides the chosen weights by their sum;
that is the softmax over the chosen ones.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sparseflow.layers.attention import Attention, AttentionShape
from sparseflow.layers.linear import Linear
from sparseflow.layers.moe import MoeLayer, MoeShape
from sparseflow.layers.norm import RMSNorm
from sparseflow.layers.tiles import tiles
from sparseflow.layers.weights import WeightLoader
from sparseflow.models.base import IdArray, LayerProgress, LogitsWanted, Model, ModelParts
from sparseflow.models.mixtral_config import MixtralConfig
from sparseflow.state.kv_cache import KVCache
from sparseflow.state.sequence_state import SequenceState


class Mixtral(Model):
    """Norms multiply by the weight itself."""

    def __init__(self, parts: ModelParts) -> None:
        config = MixtralConfig.from_dict(parts.container.config)
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
                layer_state = state.layers[index]
                assert isinstance(layer_state, KVCache)
                layer.forward(x, layer_state, position)
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
    """x += attention(norm(x)); x += experts(norm(x))."""

    def __init__(
        self, parts: ModelParts, weights: WeightLoader, config: MixtralConfig, index: int
    ) -> None:
        prefix = f"layers.{index}"
        self._parts = parts
        norm = _norm(parts, weights, f"{prefix}.input_layernorm.weight", config)
        attention = AttentionShape(
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rotary_dim=config.head_dim,
            eps=config.rms_norm_eps,
        )
        self._attention = Attention(parts.runtime, weights, f"{prefix}.self_attn", norm, attention)
        norm = _norm(parts, weights, f"{prefix}.post_attention_layernorm.weight", config)
        experts = MoeShape(config.hidden_size, config.num_experts, config.num_experts_per_tok)
        self._experts = MoeLayer(parts.runtime, weights, index, f"{prefix}.mlp", norm, experts)

    def look_ahead_to(self, following: _DecoderLayer) -> None:
        steps = bool(self._parts.lookahead)
        self._experts.look_ahead_to(following._experts, guesses_steps=steps)

    def new_state(self, capacity: int) -> KVCache:
        return self._attention.new_state(capacity, self._parts.kv_format)

    def forward(self, x: NDArray[np.float32], state: KVCache, position: int) -> None:
        """Updates x [n_tokens, hidden_size] in place."""
        for tile in tiles(len(x)):
            self._attention.forward(x[tile], state, position + tile.start)
        self._experts.forward(x, self._parts.store)


def _norm(parts: ModelParts, weights: WeightLoader, name: str, config: MixtralConfig) -> RMSNorm:
    return RMSNorm(parts.runtime, weights.vector(name, (config.hidden_size,)), config.rms_norm_eps)
