"""A container's tensors by class, for `inspect`: the same lines as a checkpoint's; and what each recipe would make of a
model.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from sparseflow.checkpoint.summary import ClassSummary, summarize
from sparseflow.checkpoint.tensor_classes import TensorClass
from sparseflow.container.dense_layout import dense_tensors, entries_of
from sparseflow.container.format import SfiLayout
from sparseflow.container.matrix_sizes import bits_per_weight
from sparseflow.container.reader import Container
from sparseflow.container.recipes import BF16, RECIPES, Recipe, get_recipe


@dataclass(frozen=True, slots=True)
class RecipeLine:
    """One line of `prepare --recipe`."""

    recipe: str
    summary: str
    formats: dict[str, str]
    """By class of tensors, routers and other small ones left out, which are float32."""
    bits_per_weight: dict[str, float]
    """By class of tensors, without scales that a whole row shares."""
    nbytes: int | None = None
    """Of all tensors, if a model is given; padding included."""
    mean_bits_per_weight: float | None = None
    """`nbytes` over the weights of the model."""
    bytes_per_token: int | None = None
    """Worst case: every chosen expert read, nothing cached."""


def summarize_container(container: Container) -> list[ClassSummary]:
    """Routed experts count as three tensors each and with the padding of their blobs."""
    return summarize_recipe(container.config, get_recipe(container.manifest.recipe))


def summarize_recipe(config: dict[str, Any], recipe: Recipe) -> list[ClassSummary]:
    """The lines of a container of that model. Raises CheckpointError if config.json lacks a field."""
    tensors: list[tuple[TensorClass | None, int, str]] = [
        (
            tensor.tensor_class,
            sum(entry.nbytes for entry in entries_of(tensor.name, tensor.record)),
            tensor.record.weight_format,
        )
        for tensor in dense_tensors(config, recipe)
    ]
    layout = SfiLayout.planned(config, recipe.experts)
    for _ in config["layer_types"]:
        num_tensors, third = 3 * layout.num_experts, layout.blob_bytes // 3
        tensors += [(TensorClass.ROUTED_EXPERT, third, recipe.experts)] * (num_tensors - 1)
        rest = layout.num_experts * layout.blob_bytes - (num_tensors - 1) * third
        tensors.append((TensorClass.ROUTED_EXPERT, rest, recipe.experts))
    return summarize(tensors, config)


def recipe_lines(config: dict[str, Any] | None = None) -> list[RecipeLine]:
    """Every recipe; with sizes if the configuration of a model is given."""
    return [_recipe_line(recipe, config) for recipe in RECIPES.values()]


def _recipe_line(recipe: Recipe, config: dict[str, Any] | None) -> RecipeLine:
    formats = {
        "routed experts": recipe.experts,
        "attention, delta, shared experts": recipe.dense,
        "head": recipe.head,
        "embedding": BF16,
    }
    bits = {name: bits_per_weight(weight_format) for name, weight_format in formats.items()}
    if config is None:
        return RecipeLine(recipe.name, recipe.summary, formats, bits)
    lines = summarize_recipe(config, recipe)
    nbytes = sum(line.nbytes for line in lines)
    layout = SfiLayout.planned(config, recipe.experts)
    num_weights = sum(prod(tensor.record.shape) for tensor in dense_tensors(config, recipe))
    num_experts = layout.num_experts * len(config["layer_types"])
    num_weights += num_experts * sum(rows * cols for rows, cols in layout.shapes)
    return RecipeLine(
        recipe.name,
        recipe.summary,
        formats,
        bits,
        nbytes,
        8 * nbytes / num_weights,
        sum(line.bytes_per_token for line in lines),
    )
