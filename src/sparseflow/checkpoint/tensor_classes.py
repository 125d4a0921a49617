"""What every tensor of a checkpoint is: one table for each family, from name patterns to class and
shape.

Canonical names are the checkpoint's without the family's prefixes, so that
`layers.3.self_attn.q_proj.weight` is the same tensor in a text-only and in a vision-language
checkpoint. Containers use canonical names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from sparseflow.checkpoint.model_config import get_count
from sparseflow.errors import UnsupportedError


class TensorClass(StrEnum):
    """What a tensor is for; recipes choose a format for each class, and `inspect` prints one line
    for each.
    """

    ROUTED_EXPERT = "routed experts"
    SHARED_EXPERT = "shared experts"
    ROUTER = "routers"
    ATTENTION = "attention"
    DELTA = "delta"
    EMBEDDING = "embedding"
    HEAD = "head"
    NORM = "norms"
    VISION = "vision"
    MTP = "mtp"


@dataclass(frozen=True, slots=True)
class TensorRow:
    """Tensors of one name pattern."""

    name: str
    """Canonical, with `{layer}` and `{expert}` for numbers."""
    tensor_class: TensorClass
    shape: tuple[str, ...]
    """Names of dimensions, as the family's `dimensions` computes them."""
    layers: str = ""
    """The layer_types entry of the layers that have it; empty: all layers."""
    is_precise: bool = False
    """Kept in float32 in every recipe."""


@dataclass(frozen=True, slots=True)
class Family:
    """How the checkpoints of one family name and shape their tensors."""

    prefixes: tuple[str, ...]
    """Removed from names, the longest first."""
    not_carried: tuple[tuple[str, TensorClass], ...]
    """Prefixes of tensors that are no part of the text model."""
    rows: tuple[TensorRow, ...]
    fused_experts: tuple[TensorRow, TensorRow]
    """gate and up of all experts of a layer; down of all experts of a layer."""
    unfused_experts: tuple[TensorRow, TensorRow, TensorRow]
    """gate, up, down of one expert."""
    dimensions: Callable[[dict[str, Any]], dict[str, int]]
    renamed: tuple[tuple[str, str], ...] = ()
    """(part of a published name, part of the canonical name), all applied in order."""


@dataclass(frozen=True, slots=True)
class TensorIdentity:
    """What a tensor's name says."""

    canonical: str
    tensor_class: TensorClass
    row: TensorRow | None
    """None for what is not carried."""
    layer: int | None = None
    expert: int | None = None


def get_family(model_type: str) -> Family:
    """The naming table of a family. Raises UnsupportedError if there is none."""
    family = FAMILIES.get(model_type)
    if family is None:
        raise UnsupportedError(
            f"no tensor names known for {model_type!r}; known: {', '.join(sorted(FAMILIES))}"
        )
    return family


def find_identity(name: str, family: Family, config: dict[str, Any]) -> TensorIdentity | None:
    """What the tensor called `name` in a checkpoint is, or None if nothing claims it."""
    for prefix, tensor_class in family.not_carried:
        if name.startswith(prefix):
            return TensorIdentity(name, tensor_class, None)
    canonical = next((name.removeprefix(p) for p in family.prefixes if name.startswith(p)), name)
    for published, ours in family.renamed:
        canonical = canonical.replace(published, ours)
    layer, expert = _number(_LAYER, canonical), _number(_EXPERT, canonical)
    pattern = _LAYER.sub("layers.{layer}.", canonical)
    pattern = _EXPERT.sub(".experts.{expert}.", pattern)
    row = None if "{" in canonical else _rows_by_name(family).get(pattern)
    layer_types = config["layer_types"]
    if row is None or (layer is not None and layer >= len(layer_types)):
        return None
    if expert is not None and expert >= config["num_experts"]:
        return None
    if layer is not None and row.layers and row.layers != layer_types[layer]:
        return None
    return TensorIdentity(canonical, row.tensor_class, row, layer, expert)


def all_rows(family: Family) -> tuple[TensorRow, ...]:
    """The rows of a family, experts in both layouts included."""
    return (*family.rows, *family.fused_experts, *family.unfused_experts)


def expected_tensors(family: Family, layer_types: list[str]) -> dict[str, TensorRow]:
    """Canonical name -> row of every tensor that the text model needs, routed experts aside, in a
    fixed order.
    """
    expected: dict[str, TensorRow] = {
        row.name: row for row in family.rows if "{layer}" not in row.name
    }
    for layer, layer_type in enumerate(layer_types):
        for row in family.rows:
            if "{layer}" in row.name and row.layers in ("", layer_type):
                expected[row.name.replace("{layer}", str(layer))] = row
    return expected


@cache
def _rows_by_name(family: Family) -> dict[str, TensorRow]:
    return {row.name: row for row in all_rows(family)}


_LAYER = re.compile(r"^layers\.(0|[1-9]\d{0,5})\.")
_EXPERT = re.compile(r"\.experts\.(0|[1-9]\d{0,5})\.")


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.search(name)
    return None if match is None else int(match[1])


def _qwen3_5_moe_dimensions(config: dict[str, Any]) -> dict[str, int]:
    def count(name: str) -> int:
        return get_count(config, name, 1 << 24, where="config.json")

    heads, head_dim = count("num_attention_heads"), count("head_dim")
    key_heads, value_heads = count("linear_num_key_heads"), count("linear_num_value_heads")
    value_rows = value_heads * count("linear_value_head_dim")
    return {
        "1": 1,
        "hidden_size": count("hidden_size"),
        "vocab_size": count("vocab_size"),
        "num_experts": count("num_experts"),
        "moe_intermediate_size": count("moe_intermediate_size"),
        "gate_up_rows": 2 * count("moe_intermediate_size"),
        "shared_intermediate_size": count("shared_expert_intermediate_size"),
        "head_dim": head_dim,
        "gated_query_rows": 2 * heads * head_dim,
        "query_rows": heads * head_dim,
        "key_value_rows": count("num_key_value_heads") * head_dim,
        "value_heads": value_heads,
        "value_rows": value_rows,
        "value_head_dim": count("linear_value_head_dim"),
        "conv_dim": 2 * key_heads * count("linear_key_head_dim") + value_rows,
        "conv_kernel": count("linear_conv_kernel_dim"),
    }


_MLP = "layers.{layer}.mlp."
_FUSED_EXPERTS = (
    TensorRow(
        _MLP + "experts.gate_up_proj",
        TensorClass.ROUTED_EXPERT,
        ("num_experts", "gate_up_rows", "hidden_size"),
    ),
    TensorRow(
        _MLP + "experts.down_proj",
        TensorClass.ROUTED_EXPERT,
        ("num_experts", "hidden_size", "moe_intermediate_size"),
    ),
)
_UNFUSED_EXPERTS = (
    TensorRow(
        _MLP + "experts.{expert}.gate_proj.weight",
        TensorClass.ROUTED_EXPERT,
        ("moe_intermediate_size", "hidden_size"),
    ),
    TensorRow(
        _MLP + "experts.{expert}.up_proj.weight",
        TensorClass.ROUTED_EXPERT,
        ("moe_intermediate_size", "hidden_size"),
    ),
    TensorRow(
        _MLP + "experts.{expert}.down_proj.weight",
        TensorClass.ROUTED_EXPERT,
        ("hidden_size", "moe_intermediate_size"),
    ),
)


def _qwen3_5_moe() -> Family:
    c = TensorClass
    attention, delta = "full_attention", "linear_attention"
    layer = "layers.{layer}."
    attn, lin, mlp = layer + "self_attn.", layer + "linear_attn.", _MLP
    return Family(
        prefixes=("model.language_model.", "model."),
        not_carried=(
            ("model.visual.", c.VISION),
            ("visual.", c.VISION),
            ("mtp.", c.MTP),
            ("model.mtp.", c.MTP),
        ),
        rows=(
            TensorRow("embed_tokens.weight", c.EMBEDDING, ("vocab_size", "hidden_size")),
            TensorRow("lm_head.weight", c.HEAD, ("vocab_size", "hidden_size")),
            TensorRow("norm.weight", c.NORM, ("hidden_size",), is_precise=True),
            TensorRow(layer + "input_layernorm.weight", c.NORM, ("hidden_size",), is_precise=True),
            TensorRow(
                attn + "q_proj.weight", c.ATTENTION, ("gated_query_rows", "hidden_size"), attention
            ),
            TensorRow(
                attn + "k_proj.weight", c.ATTENTION, ("key_value_rows", "hidden_size"), attention
            ),
            TensorRow(
                attn + "v_proj.weight", c.ATTENTION, ("key_value_rows", "hidden_size"), attention
            ),
            TensorRow(
                attn + "o_proj.weight", c.ATTENTION, ("hidden_size", "query_rows"), attention
            ),
            TensorRow(attn + "q_norm.weight", c.NORM, ("head_dim",), attention, is_precise=True),
            TensorRow(attn + "k_norm.weight", c.NORM, ("head_dim",), attention, is_precise=True),
            TensorRow(lin + "in_proj_qkv.weight", c.DELTA, ("conv_dim", "hidden_size"), delta),
            TensorRow(lin + "in_proj_z.weight", c.DELTA, ("value_rows", "hidden_size"), delta),
            TensorRow(
                lin + "in_proj_a.weight",
                c.DELTA,
                ("value_heads", "hidden_size"),
                delta,
                is_precise=True,
            ),
            TensorRow(
                lin + "in_proj_b.weight",
                c.DELTA,
                ("value_heads", "hidden_size"),
                delta,
                is_precise=True,
            ),
            TensorRow(
                lin + "conv1d.weight",
                c.DELTA,
                ("conv_dim", "1", "conv_kernel"),
                delta,
                is_precise=True,
            ),
            TensorRow(lin + "A_log", c.DELTA, ("value_heads",), delta, is_precise=True),
            TensorRow(lin + "dt_bias", c.DELTA, ("value_heads",), delta, is_precise=True),
            TensorRow(lin + "norm.weight", c.NORM, ("value_head_dim",), delta, is_precise=True),
            TensorRow(lin + "out_proj.weight", c.DELTA, ("hidden_size", "value_rows"), delta),
            TensorRow(
                layer + "post_attention_layernorm.weight", c.NORM, ("hidden_size",), is_precise=True
            ),
            TensorRow(
                mlp + "gate.weight", c.ROUTER, ("num_experts", "hidden_size"), is_precise=True
            ),
            TensorRow(
                mlp + "shared_expert.gate_proj.weight",
                c.SHARED_EXPERT,
                ("shared_intermediate_size", "hidden_size"),
            ),
            TensorRow(
                mlp + "shared_expert.up_proj.weight",
                c.SHARED_EXPERT,
                ("shared_intermediate_size", "hidden_size"),
            ),
            TensorRow(
                mlp + "shared_expert.down_proj.weight",
                c.SHARED_EXPERT,
                ("hidden_size", "shared_intermediate_size"),
            ),
            TensorRow(
                mlp + "shared_expert_gate.weight",
                c.SHARED_EXPERT,
                ("1", "hidden_size"),
                is_precise=True,
            ),
        ),
        fused_experts=_FUSED_EXPERTS,
        unfused_experts=_UNFUSED_EXPERTS,
        dimensions=_qwen3_5_moe_dimensions,
    )


def _mixtral_dimensions(config: dict[str, Any]) -> dict[str, int]:
    def count(name: str) -> int:
        return get_count(config, name, 1 << 24, where="config.json")

    return {
        "hidden_size": count("hidden_size"),
        "vocab_size": count("vocab_size"),
        "num_experts": count("num_experts"),
        "moe_intermediate_size": count("moe_intermediate_size"),
        "gate_up_rows": 2 * count("moe_intermediate_size"),
        "query_rows": count("num_attention_heads") * count("head_dim"),
        "key_value_rows": count("num_key_value_heads") * count("head_dim"),
    }


def _mixtral() -> Family:
    """Published as `block_sparse_moe.experts.E.w1` (gate), `w3` (up), `w2` (down); newer tools write
    `mlp.experts.gate_up_proj` and `down_proj`.
    """
    c = TensorClass
    attn = "layers.{layer}.self_attn."
    return Family(
        prefixes=("model.",),
        not_carried=(),
        rows=(
            TensorRow("embed_tokens.weight", c.EMBEDDING, ("vocab_size", "hidden_size")),
            TensorRow("lm_head.weight", c.HEAD, ("vocab_size", "hidden_size")),
            TensorRow("norm.weight", c.NORM, ("hidden_size",), is_precise=True),
            TensorRow(
                "layers.{layer}.input_layernorm.weight", c.NORM, ("hidden_size",), is_precise=True
            ),
            TensorRow(attn + "q_proj.weight", c.ATTENTION, ("query_rows", "hidden_size")),
            TensorRow(attn + "k_proj.weight", c.ATTENTION, ("key_value_rows", "hidden_size")),
            TensorRow(attn + "v_proj.weight", c.ATTENTION, ("key_value_rows", "hidden_size")),
            TensorRow(attn + "o_proj.weight", c.ATTENTION, ("hidden_size", "query_rows")),
            TensorRow(
                "layers.{layer}.post_attention_layernorm.weight",
                c.NORM,
                ("hidden_size",),
                is_precise=True,
            ),
            TensorRow(
                _MLP + "gate.weight", c.ROUTER, ("num_experts", "hidden_size"), is_precise=True
            ),
        ),
        fused_experts=_FUSED_EXPERTS,
        unfused_experts=_UNFUSED_EXPERTS,
        dimensions=_mixtral_dimensions,
        renamed=(
            (".block_sparse_moe.", ".mlp."),
            (".w1.", ".gate_proj."),
            (".w3.", ".up_proj."),
            (".w2.", ".down_proj."),
        ),
    )


FAMILIES = {"mixtral": _mixtral(), "qwen3_5_moe": _qwen3_5_moe()}
