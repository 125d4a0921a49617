"""The table of model families: model_type to the class that runs it and the configuration that says
what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparseflow.errors import UnsupportedError
from sparseflow.models.memory_needs import MemoryNeeds
from sparseflow.models.mixtral_config import MixtralConfig
from sparseflow.models.qwen3_5_moe_config import Qwen3_5MoeConfig

if TYPE_CHECKING:
    from sparseflow.models.base import Model, ModelParts


# What runs a model is imported when one is made: a plan needs the configurations alone.


def _create_mixtral(parts: ModelParts) -> Model:
    from sparseflow.models.mixtral import Mixtral

    return Mixtral(parts)


def _create_qwen3_5_moe(parts: ModelParts) -> Model:
    from sparseflow.models.qwen3_5_moe import Qwen3_5Moe

    return Qwen3_5Moe(parts)


@dataclass(frozen=True, slots=True)
class _Family:
    create: Callable[[ModelParts], Model]
    read_config: Callable[[Mapping[str, Any]], MemoryNeeds]


_QWEN3_5_MOE = _Family(_create_qwen3_5_moe, Qwen3_5MoeConfig.from_dict)
_FAMILIES = {
    "mixtral": _Family(_create_mixtral, MixtralConfig.from_dict),
    "qwen3_5_moe": _QWEN3_5_MOE,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
}


def create_model(model_type: str, parts: ModelParts) -> Model:
    """Loads the dense weights and returns the model. Raises UnsupportedError naming the known
    families.
    """
    return _find(model_type).create(parts)


def memory_needs(model_type: str, config: Mapping[str, Any]) -> MemoryNeeds:
    """What a model of that text configuration takes beside its weights, from the configuration
    alone. Raises UnsupportedError and ContainerError.
    """
    return _find(model_type).read_config(config)


def _find(model_type: str) -> _Family:
    family = _FAMILIES.get(model_type)
    if family is None:
        raise UnsupportedError(
            f"model_type {model_type!r} is not supported; known: {', '.join(sorted(_FAMILIES))}"
        )
    return family
