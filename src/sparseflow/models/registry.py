"""The table of model families: model_type to the class that runs it."""

from __future__ import annotations

from collections.abc import Callable

from sparseflow.errors import UnsupportedError
from sparseflow.models.base import Model, ModelParts
from sparseflow.models.qwen3_5_moe import Qwen3_5Moe

_FAMILIES: dict[str, Callable[[ModelParts], Model]] = {
    "qwen3_5_moe": Qwen3_5Moe,
    "qwen3_5_moe_text": Qwen3_5Moe,
}


def create_model(model_type: str, parts: ModelParts) -> Model:
    """Loads the dense weights and returns the model. Raises UnsupportedError naming the known
    families.
    """
    family = _FAMILIES.get(model_type)
    if family is None:
        raise UnsupportedError(
            f"model_type {model_type!r} is not supported; known: {', '.join(sorted(_FAMILIES))}"
        )
    return family(parts)
