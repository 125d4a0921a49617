"""What the parts of a container must agree on: manifest, config.json, the recipe, dense.safetensors and the files
there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparseflow.checkpoint.header import TensorEntry
from sparseflow.container.dense_layout import DENSE_NAME, dense_tensors, entries_of
from sparseflow.container.manifest import Manifest, TensorRecord, expert_file_name
from sparseflow.container.recipes import RECIPES
from sparseflow.errors import CheckpointError, ContainerError, UnsupportedError


def check_files(directory: Path, manifest: Manifest) -> None:
    """Raises ContainerError if a file that the manifest lists is not there or has another size."""
    for name, record in manifest.files.items():
        _check_file(directory / name, record.nbytes)


def _check_file(path: Path, nbytes: int) -> None:
    try:
        actual = path.stat().st_size
    except OSError:
        raise ContainerError(
            f"{path}: the manifest names this file, but it is not there; prepare again"
        ) from None
    if actual != nbytes or not path.is_file():
        raise ContainerError(f"{path}: {actual} bytes; the manifest says {nbytes}: prepare again")


def check_config(directory: Path, manifest: Manifest, config: dict[str, Any]) -> None:
    """Raises ContainerError if config.json and manifest describe different models, or a needed file is not listed."""
    experts = manifest.experts
    claims = {
        "model_type": manifest.model_type,
        "num_hidden_layers": experts.num_layers,
        "num_experts": experts.num_experts,
        "hidden_size": experts.hidden_size,
        "moe_intermediate_size": experts.moe_intermediate_size,
    }
    for name, value in claims.items():
        if config[name] != value:
            raise ContainerError(
                f"{directory}: {name} is {value!r} in the manifest, {config[name]!r} in config.json"
            )
    _check_tensors(directory, manifest, config)
    needed = [
        "config.json",
        DENSE_NAME,
        *(expert_file_name(layer) for layer in range(experts.num_layers)),
    ]
    missing = [name for name in needed if name not in manifest.files]
    if missing:
        raise ContainerError(f"{directory}: the manifest does not list {missing[0]}; prepare again")


def check_entries(
    path: Path, tensors: dict[str, TensorRecord], entries: dict[str, TensorEntry]
) -> None:
    """Raises ContainerError if the entries of dense.safetensors are not those of the manifest's tensors."""
    expected = {
        entry.name: entry for name, record in tensors.items() for entry in entries_of(name, record)
    }
    for name, entry in expected.items():
        found = entries.get(name)
        if found is None or (found.dtype, found.shape) != (entry.dtype, entry.shape):
            raise ContainerError(
                f"{path}: {name!r} is missing or not {entry.dtype} {list(entry.shape)}; prepare"
                " again"
            )
    unknown = [name for name in entries if name not in expected]
    if unknown:
        raise ContainerError(f"{path}: tensor {unknown[0]!r} is not in the manifest")


def _check_tensors(directory: Path, manifest: Manifest, config: dict[str, Any]) -> None:
    """The manifest must list exactly the tensors that config.json and the recipe ask for."""
    recipe = RECIPES.get(manifest.recipe)
    if recipe is None:
        raise UnsupportedError(
            f"{directory}: unknown recipe {manifest.recipe[:40]!r}; known: {', '.join(RECIPES)}"
        )
    try:
        expected = {tensor.name: tensor.record for tensor in dense_tensors(config, recipe)}
    except CheckpointError as problem:
        raise ContainerError(f"{directory}: {problem}") from None
    for name in {**expected, **manifest.tensors}:
        if expected.get(name) != manifest.tensors.get(name):
            raise ContainerError(
                f"{directory}: tensor {name!r} is {_describe(manifest.tensors.get(name))} in the manifest;"
                " config.json"
                f" and recipe {recipe.name} ask for {_describe(expected.get(name))}"
            )
    if manifest.experts.weight_format != recipe.experts:
        raise ContainerError(
            f"{directory}: experts are {manifest.experts.weight_format}, recipe {recipe.name}"
            f" says {recipe.experts}"
        )


def _describe(record: TensorRecord | None) -> str:
    return "absent" if record is None else f"{record.weight_format} {list(record.shape)}"
