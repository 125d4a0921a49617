"""The fields of a Qwen3.5 text configuration that its arithmetic needs, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparseflow.errors import ContainerError, UnsupportedError

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
        text = config.get("text_config", config)
        if not isinstance(text, Mapping):
            raise ContainerError("config.json: text_config must be an object")
        _refuse_variants(text)
        sizes = {name: _size(text, name) for name in _SIZES}
        _check_divides(sizes, "num_key_value_heads", "num_attention_heads")
        _check_divides(sizes, "linear_num_key_heads", "linear_num_value_heads")
        if sizes["num_experts_per_tok"] > sizes["num_experts"]:
            raise ContainerError("config.json: num_experts_per_tok is larger than num_experts")
        return cls(
            **sizes,
            rms_norm_eps=_number(text.get("rms_norm_eps", 1e-6), "rms_norm_eps"),
            rotary_dim=_rotary_dim(text, sizes["head_dim"]),
            layer_types=_layer_types(text, sizes["num_hidden_layers"]),
        )


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


def _size(text: Mapping[str, Any], name: str) -> int:
    value = text.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise ContainerError(f"config.json: {name} is {value!r}; must be a positive integer")
    return value


def _number(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
        raise ContainerError(f"config.json: {name} is {value!r}; must be a positive number")
    return float(value)


def _check_divides(sizes: Mapping[str, int], part: str, whole: str) -> None:
    if sizes[whole] % sizes[part]:
        raise ContainerError(
            f"config.json: {whole} {sizes[whole]} is not a multiple of {part} {sizes[part]}"
        )


def _rotary_dim(text: Mapping[str, Any], head_dim: int) -> int:
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    factor = rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25))
    rotary_dim = int(head_dim * _number(factor, "partial_rotary_factor"))
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise ContainerError(
            f"config.json: {rotary_dim} rotary channels of head_dim {head_dim}; must be even"
        )
    return rotary_dim


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
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    fixed: tuple[tuple[str, Any, Any], ...] = (
        ("hidden_act", text.get("hidden_act", "silu"), "silu"),
        ("attention_bias", text.get("attention_bias", False), False),
        ("attn_output_gate", text.get("attn_output_gate", True), True),
        ("rope_type", rope_type, "default"),
        ("mlp_only_layers", text.get("mlp_only_layers") or [], []),
        ("decoder_sparse_step", text.get("decoder_sparse_step", 1), 1),
    )
    for name, value, supported in fixed:
        if value != supported:
            raise UnsupportedError(
                f"config.json: {name} {value!r} is not supported; only {supported!r}"
            )
