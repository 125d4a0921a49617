"""The ways to store a model's weights that are compared, and what each takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.tensor_classes import TensorClass, TensorRow, expected_tensors
from sparseflow.container.recipes import (
    BF16,
    FLOAT32,
    INT4_G32,
    INT4_G64,
    INT6_G64,
    INT8,
    INT8_G64,
    Recipe,
    get_recipe,
)


@dataclass(frozen=True)
class ClassRecipe(Recipe):
    """A recipe whose dense formats differ by class."""

    classes: dict[TensorClass, str] = field(default_factory=dict)

    def format_of(self, row: TensorRow) -> str:
        own = None if row.is_precise else self.classes.get(row.tensor_class)
        return own or Recipe.format_of(self, row)


@dataclass(frozen=True)
class Variant:
    """A recipe as it is; or gguf's types in place of its formats; or formats of a study."""

    name: str
    recipe: str
    types: dict[str, str] = field(default_factory=dict)
    """Format of `recipe` -> gguf's type; the weights come back as BF16 and are run by recipe bf16."""
    by_class: ClassRecipe | None = None


_INT4 = get_recipe("int4")
VARIANTS = (
    Variant("int8", "int8"),
    Variant("Q8_0", "int4", {_INT4.experts: "Q8_0", _INT4.dense: "Q8_0"}),
    Variant("int4", "int4"),
    Variant("Q4_0", "int4", {_INT4.experts: "Q4_0", _INT4.dense: "Q8_0"}),
    Variant("int4-small", "int4-small"),
)


def _studied(name: str, dense: str, head: str, experts: str = INT4_G32, **classes: str) -> Variant:
    by_class = {TensorClass[key]: value for key, value in classes.items()}
    recipe = ClassRecipe(name, "", experts, dense, head, "float16", by_class)
    return Variant(name, "int4", by_class=recipe)


STUDY = (
    _studied("everything 8/64", INT8_G64, INT8_G64, INT8_G64),
    _studied("everything 8, a scale per row", INT8, INT8, INT8),
    _studied("experts 4/32, dense 8, head 8", INT8_G64, INT8_G64),
    _studied("experts 4/32, dense 8, head 6", INT8_G64, INT6_G64),
    _studied("experts 4/32, dense 6, head 8", INT6_G64, INT8_G64),
    _studied("experts 4/32, dense 6, head 6", INT6_G64, INT6_G64),
    _studied("the same, experts 4/64", INT6_G64, INT6_G64, INT4_G64),
    _studied("the same, head 4/32", INT6_G64, INT4_G32),
    _studied("the same, attention 4/32", INT6_G64, INT6_G64, ATTENTION=INT4_G32),
    _studied("the same, delta 4/32", INT6_G64, INT6_G64, DELTA=INT4_G32),
    _studied("the same, shared experts 4/32", INT6_G64, INT6_G64, SHARED_EXPERT=INT4_G32),
    _studied("experts 4/32, dense 4/32, head 6", INT4_G32, INT6_G64),
    _studied("everything 4/32", INT4_G32, INT4_G32),
    _studied("everything 4/64", INT4_G64, INT4_G64, INT4_G64),
    Variant("everything Q4_0", "int4", {_INT4.experts: "Q4_0", _INT4.dense: "Q4_0"}),
)
"""Bits / group; 8 and 6 bits have groups of 64. "The same" is experts 4/32, dense 6, head 6."""

BITS = {
    FLOAT32: 32.0,
    BF16: 16.0,
    INT8: 8.0,
    INT8_G64: 8.25,
    INT6_G64: 6.25,
    INT4_G64: 4.25,
    INT4_G32: 4.5,
    "Q8_0": 8.5,
    "Q4_0": 4.5,
}
"""A weight, scales of groups included."""


def costs(checkpoint: Path, variant: Variant) -> tuple[float, int]:
    """Bits per weight of everything but the embedding, and the bytes of them that a token reads; padding aside."""
    recipe = variant.by_class or get_recipe(variant.recipe)
    with Checkpoint.open(checkpoint) as opened:
        dims, config = opened.dimensions, opened.config
        rows = [
            (row, 1.0) for row in expected_tensors(opened.family, config["layer_types"]).values()
        ]
        share = config["num_experts_per_tok"] / config["num_experts"]
        rows += [(row, share) for row in opened.family.fused_experts] * config["num_hidden_layers"]
    num_weights = total = touched = 0.0
    for row, part in rows:
        if row.tensor_class == TensorClass.EMBEDDING:
            continue
        shape = [dims[dim] for dim in row.shape]
        bits = _bits(variant, recipe.format_of(row), shape) * prod(shape)
        num_weights += prod(shape)
        total += bits
        touched += bits * part
    return total / num_weights, round(touched / 8)


def _bits(variant: Variant, weight_format: str, shape: list[int]) -> float:
    bits = BITS[variant.types.get(weight_format, weight_format)]
    return bits + 32 / shape[-1] if weight_format == INT8 else bits
