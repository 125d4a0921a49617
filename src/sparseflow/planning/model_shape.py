"""What a model in a recipe holds: known from a container's manifest, or from a checkpoint's headers before one exists.

Everything that plan says about memory, disk and time is counted from this. No weight is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sparseflow.checkpoint.model_config import read_text_config
from sparseflow.container.dense_layout import (
    DENSE_NAME,
    EMBEDDING_NAME,
    build_dense_header,
    dense_tensors,
    entries_of,
)
from sparseflow.container.format import SfiLayout
from sparseflow.container.manifest import TensorRecord, read_manifest
from sparseflow.container.recipes import RECIPES, Recipe
from sparseflow.errors import ContainerError
from sparseflow.models.memory_needs import MemoryNeeds
from sparseflow.models.registry import memory_needs

TOKENIZER_NAME = "tokenizer.json"
TOKEN_BYTES = 45
"""Of tokenizer.json for each token, where it is still to be made: 10 to 20 MB for 248,000."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of one model in one recipe."""

    model_type: str
    recipe: str
    config: Mapping[str, Any]
    """Of the text model, checked (checkpoint/model_config.py)."""
    tensors: Mapping[str, TensorRecord]
    """Of dense.safetensors."""
    layout: SfiLayout
    """Of a layer's experts; all layers are alike."""
    num_layers: int
    tokenizer_bytes: int
    """Of tokenizer.json."""
    file_bytes: int
    """Of the whole container on disk."""

    @cached_property
    def needs(self) -> MemoryNeeds:
        """What the family takes beside weights and experts. Raises UnsupportedError and ContainerError."""
        return memory_needs(self.model_type, self.config)

    @cached_property
    def dense_bytes(self) -> int:
        """Weights that stay in memory: all of dense.safetensors but the embedding, which is read by row."""
        return sum(
            entry.nbytes
            for name, record in self.tensors.items()
            if name != EMBEDDING_NAME
            for entry in entries_of(name, record)
        )

    @property
    def weight_formats(self) -> list[str]:
        """Of all its weights, by name."""
        dense = {record.weight_format for record in self.tensors.values()}
        return sorted(dense | {self.layout.weight_format})

    @property
    def blob_bytes(self) -> int:
        """Of one routed expert, on disk and in a slot."""
        return self.layout.blob_bytes

    @property
    def num_experts(self) -> int:
        """Routed experts of all layers."""
        return self.num_layers * self.layout.num_experts

    @property
    def experts_bytes(self) -> int:
        """Of all routed experts."""
        return self.num_experts * self.blob_bytes

    @property
    def experts_per_token(self) -> int:
        """Chosen in each layer."""
        return int(self.config["num_experts_per_tok"])

    @property
    def max_position(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.config["max_position_embeddings"])

    @property
    def kv_item_bytes(self) -> int:
        """Of one key or value: float32 in bf16, else float16."""
        recipe = RECIPES.get(self.recipe)
        return 4 if recipe is not None and recipe.kv_format == "float32" else 2


def container_shape(container: Path) -> ModelShape:
    """From manifest and config.json. Raises ContainerError for a damaged one and UnsupportedError."""
    manifest = read_manifest(container)
    tokenizer = manifest.files.get(TOKENIZER_NAME)
    if tokenizer is None or not (container / TOKENIZER_NAME).is_file():
        raise ContainerError(
            f"{container / TOKENIZER_NAME}: missing; prepare the model again from a checkpoint with a tokenizer"
        )
    experts = manifest.experts
    return ModelShape(
        model_type=manifest.model_type,
        recipe=manifest.recipe,
        config=read_text_config(container, ContainerError),
        tensors=manifest.tensors,
        layout=SfiLayout.of(experts),
        num_layers=experts.num_layers,
        tokenizer_bytes=tokenizer.nbytes,
        file_bytes=sum(record.nbytes for record in manifest.files.values()),
    )


def recipe_shape(config: dict[str, Any], recipe: Recipe, copied: Mapping[str, int]) -> ModelShape:
    """What `prepare` would make of a checkpoint. config: of the text model; copied: files that a container takes
    over, with their sizes.

    Raises CheckpointError if the configuration lacks a field.
    """
    dense = {tensor.name: tensor.record for tensor in dense_tensors(config, recipe)}
    layout = SfiLayout.planned(config, recipe.experts)
    num_layers = len(config["layer_types"])
    sizes = {
        **copied,
        DENSE_NAME: build_dense_header(dense)[2],
        "experts": num_layers * layout.file_bytes,
    }
    return ModelShape(
        model_type=config["model_type"],
        recipe=recipe.name,
        config=config,
        tensors=dense,
        layout=layout,
        num_layers=num_layers,
        tokenizer_bytes=copied.get(TOKENIZER_NAME, TOKEN_BYTES * config["vocab_size"]),
        file_bytes=sum(sizes.values()),
    )
