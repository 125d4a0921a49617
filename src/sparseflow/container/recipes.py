"""Recipes: which format each class of tensors is stored in. One table; a new recipe is a new row."""

from __future__ import annotations

from dataclasses import dataclass

from sparseflow.checkpoint.tensor_classes import TensorClass, TensorRow
from sparseflow.errors import ConfigError

FLOAT32, BF16, INT8 = "float32", "bf16-v1", "int8-v1"
INT8_G64, INT6_G64, INT4_G64 = "int8-g64-v1", "int6-g64-v1", "int4-g64-v1"
INT4_G32 = "int4-g32-v1"
KNOWN_FORMATS = (FLOAT32, BF16, INT8, INT8_G64, INT6_G64, INT4_G64, INT4_G32)
DEFAULT_RECIPE = "int4"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Formats of a container. Whatever the recipe, tensors marked precise stay float32 and the
    embedding BF16.
    """

    name: str
    summary: str
    experts: str
    dense: str
    """Matrices of attention, delta and shared experts."""
    head: str
    kv_format: str
    """Of keys and values at run time."""

    def format_of(self, row: TensorRow) -> str:
        """The format of the tensors of one row of a family's table."""
        if row.is_precise:
            return FLOAT32
        formats = {
            TensorClass.ROUTED_EXPERT: self.experts,
            TensorClass.EMBEDDING: BF16,
            TensorClass.HEAD: self.head,
        }
        return formats.get(row.tensor_class, self.dense)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("bf16", "the checkpoint's own weights", BF16, BF16, BF16, "float32"),
        Recipe("int8", "8 bits, a scale per 64 weights", INT8_G64, INT8_G64, INT8_G64, "float16"),
        Recipe(
            "int4",
            "experts in 4 bits, a scale per 32 weights; the rest in 8, a scale per 64",
            INT4_G32,
            INT8_G64,
            INT8_G64,
            "float16",
        ),
        Recipe(
            "int4-small",
            "experts in 4 bits, a scale per 32 weights; the rest in 6, a scale per 64",
            INT4_G32,
            INT6_G64,
            INT6_G64,
            "float16",
        ),
    )
}


def get_recipe(name: str) -> Recipe:
    """The recipe of that name. Raises ConfigError naming the known ones."""
    recipe = RECIPES.get(name)
    if recipe is None:
        raise ConfigError(f"unknown recipe {name!r}; known: {', '.join(RECIPES)}")
    return recipe
