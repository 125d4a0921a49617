"""Shapes of models that exist nowhere on this disk."""

from __future__ import annotations

from sparseflow.container.recipes import get_recipe
from sparseflow.planning.model_shape import ModelShape, recipe_shape
from synthetic.layout import text_config


def qwen_shape(recipe: str = "int4") -> ModelShape:
    """The published Qwen3.6-35B-A3B's."""
    text = text_config(40, 248_320, "true")
    config = {**text, "model_type": "qwen3_5_moe", "tie_word_embeddings": False}
    return recipe_shape(config, get_recipe(recipe), {"tokenizer.json": 12 << 20})
