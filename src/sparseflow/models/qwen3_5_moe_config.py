"""The fields of a Qwen3.5 text configuration that its arithmetic needs, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparseflow.errors import ContainerError, UnsupportedError
from sparseflow.layers.workspace import LayerSizes, workspace_bytes
from sparseflow.models import fields

_LAYER_TYPES = ("linear_attention", "full_attention")


@dataclass(frozen=True, slots=True)
class Qwen3_5MoeConfig:  # noqa: N801 - the family's name
    """Hugging Face's names and meanings."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rotary_dim: int
    layer_types: tuple[str, ...]

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Qwen3_5MoeConfig:
        """From config.json's content, nested under text_config or flat.

        Raises ContainerError if a field is missing or out of range, UnsupportedError for a variant
        that would compute something else.
        """
        text = fields.text_fields(config)
        _refuse_variants(text)
        sizes = {name: fields.size(text, name) for name in _SIZES}
        fields.check_divides(sizes, "num_key_value_heads", "num_attention_heads")
        fields.check_divides(sizes, "linear_num_key_heads", "linear_num_value_heads")
        fields.check_top_k(sizes)
        return cls(
            **sizes,
            rms_norm_eps=fields.number(text.get("rms_norm_eps", 1e-6), "rms_norm_eps"),
            rotary_dim=fields.rotary_dim(text, sizes["head_dim"], default_factor=0.25),
            layer_types=_layer_types(text, sizes["num_hidden_layers"]),
        )

    def state_bytes(self, ctx: int, kv_bytes: int) -> int:
        """Keys and values of `ctx` tokens in attention layers; matrices and tails in delta layers."""
        keys = self.num_key_value_heads * self.head_dim * ctx * kv_bytes
        heads, channels = self.linear_num_value_heads, self._conv_dim
        matrices = 4 * heads * self.linear_key_head_dim * self.linear_value_head_dim
        tails = 4 * channels * (self.linear_conv_kernel_dim - 1)
        delta = self.layer_types.count("linear_attention")
        return (self.num_hidden_layers - delta) * 2 * keys + delta * (matrices + tails)

    def workspace_bytes(self, chunk: int) -> int:
        """See layers/workspace.py."""
        query, key = self.num_attention_heads, self.num_key_value_heads
        attention = (3 * query + 2 * key) * self.head_dim
        values = self.linear_num_value_heads * self.linear_value_head_dim
        mixer = max(attention, 2 * self._conv_dim + 3 * values)
        sizes = LayerSizes(
            hidden_size=self.hidden_size,
            mixer_size=mixer,
            expert_size=max(self.moe_intermediate_size, self.shared_expert_intermediate_size),
            num_experts=self.num_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            vocab_size=self.vocab_size,
        )
        return workspace_bytes(sizes, chunk)

    def float_macs(self, position: int) -> int:
        """Scores and sums over the keys so far; decay, product, update and product of each delta matrix."""
        attention = 2 * self.num_attention_heads * self.head_dim * position
        matrix = self.linear_num_value_heads * self.linear_key_head_dim * self.linear_value_head_dim
        delta = self.layer_types.count("linear_attention")
        return (self.num_hidden_layers - delta) * attention + delta * 4 * matrix

    @property
    def _conv_dim(self) -> int:
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * keys + self.linear_num_value_heads * self.linear_value_head_dim


_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "max_position_embeddings",
)


def _layer_types(text: Mapping[str, Any], num_layers: int) -> tuple[str, ...]:
    types = text.get("layer_types")
    if types is None:
        interval = text.get("full_attention_interval", 4)
        types = [_LAYER_TYPES[(i + 1) % interval == 0] for i in range(num_layers)]
    if not isinstance(types, list) or len(types) != num_layers:
        raise ContainerError(f"config.json: layer_types must list {num_layers} layers")
    unknown = sorted({str(t) for t in types} - set(_LAYER_TYPES))
    if unknown:
        raise UnsupportedError(
            f"config.json: layer type {unknown[0]!r}; known: {', '.join(_LAYER_TYPES)}"
        )
    return tuple(types)


def _refuse_variants(text: Mapping[str, Any]) -> None:
    fields.refuse_others(
        (
            ("hidden_act", text.get("hidden_act", "silu"), "silu"),
            ("attention_bias", text.get("attention_bias", False), False),
            ("attn_output_gate", text.get("attn_output_gate", True), True),
            ("rope_type", fields.rope_type(text), "default"),
            ("mlp_only_layers", text.get("mlp_only_layers") or [], []),
            ("decoder_sparse_step", text.get("decoder_sparse_step", 1), 1),
        )
    )
