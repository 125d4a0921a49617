"""What `plan` is asked about: a model's shapes, wherever its headers are, and the machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparseflow.cli import models
from sparseflow.cli.options import places
from sparseflow.config import EngineConfig
from sparseflow.errors import ConfigError
from sparseflow.host.memory import memory_facts
from sparseflow.planning.machine import Machine, assumed_machine, measure_machine, parse_machine
from sparseflow.planning.model_shape import (
    TOKENIZER_NAME,
    ModelShape,
    container_shape,
    recipe_shape,
)

if TYPE_CHECKING:
    from sparseflow.cli.console import ProgressCallback
    from sparseflow.container.hub_names import HubName

PROBE_BYTES = 256 << 20
"""Of the file that is written where a container would lie, to measure the disk."""
PROBE_READ = 1 << 20
LEAST_TO_MEASURE = 1 << 30
"""Bytes that must be available: measuring takes half of that for a moment."""


@dataclass(frozen=True, slots=True)
class Found:
    """A model before anything of it is loaded."""

    shapes: list[ModelShape]
    """One for each recipe in question; of a container its own."""
    source_bytes: int | None
    """Of the checkpoint; None for a container."""
    files: list[tuple[Path, int]]
    """Files to measure the disk with, and the bytes of one read."""
    heat: Any = None
    """History of a container's earlier runs; None without."""
    download_bytes: int = 0
    """Of the shards on the hub."""
    spare_bytes: int = 0
    """On disk beside the container while it is prepared from a hub."""


def find_model(
    name: str,
    models_dir: Path | None,
    recipe: str | None,
    progress: ProgressCallback,
    heat_dir: Path | None = None,
) -> Found:
    """Raises what resolving a model raises, and what reading headers raises."""
    from sparseflow.checkpoint.open import is_gguf
    from sparseflow.container.hub_names import parse_hub_name

    path = Path(name)
    if is_gguf(path) or (path.is_dir() and not (path / models.MANIFEST).exists()):
        return _checkpoint(path, recipe)
    hub_name = None if path.exists() else parse_hub_name(name)
    if hub_name is not None and not models.is_prepared(hub_name, models_dir):
        return _on_hub(hub_name, recipe or hub_name.recipe, progress)
    container = models.resolve(name, models_dir, progress)
    if recipe is not None:
        raise ConfigError(f"--recipe: {name} is a container, which has its recipe")
    shape = container_shape(container)
    files = [(file, shape.blob_bytes) for file in sorted(container.glob("experts/*.sfi"))]
    return Found([shape], None, files, _read_heat(container, shape, heat_dir))


def _read_heat(container: Path, shape: ModelShape, heat_dir: Path | None) -> Any:
    """What earlier runs left; None if there is nothing, or nothing that can be used."""
    if heat_dir is None:
        return None
    from sparseflow.experts.heat import heat_path, read_heat

    path = heat_path(heat_dir, (container / models.MANIFEST).read_bytes())
    if not path.exists():
        return None
    try:
        return read_heat(path, (shape.num_layers, shape.layout.num_experts))
    except (OSError, ValueError):
        return None


def _on_hub(name: HubName, recipe: str | None, progress: ProgressCallback) -> Found:
    """From the headers of the hub's files, which are fetched and not kept."""
    from sparseflow.checkpoint.hub import fetch_headers, open_hub

    progress("headers", 0, 1)
    with tempfile.TemporaryDirectory(prefix="sparseflow-headers-") as directory:
        repo = open_hub(name.repo_id, name.revision)
        found = _checkpoint(fetch_headers(repo, Path(directory)), recipe)
        sizes = [path.stat().st_size for path in Path(directory).glob("*.safetensors")]
    progress("headers", 1, 1)
    return replace(found, download_bytes=sum(sizes), spare_bytes=sum(sorted(sizes)[-2:]))


def _checkpoint(directory: Path, recipe: str | None) -> Found:
    from sparseflow.checkpoint.open import open_checkpoint
    from sparseflow.container.recipes import RECIPES, get_recipe

    with open_checkpoint(directory) as checkpoint:
        config, headers = checkpoint.config, checkpoint.headers
    tokenizer = directory / TOKENIZER_NAME
    copied = {TOKENIZER_NAME: tokenizer.stat().st_size} if tokenizer.is_file() else {}
    recipes = list(RECIPES.values()) if recipe is None else [get_recipe(recipe)]
    # A file with holes, whose payload was never written, says nothing of the disk.
    whole = [h.path for h in headers if h.path.stat().st_blocks * 512 >= 0.9 * h.file_bytes]
    return Found(
        [recipe_shape(config, each, copied) for each in recipes],
        sum(header.file_bytes for header in headers),
        [(file, PROBE_READ) for file in whole],
    )


def find_machine(
    text: str | None,
    found: Found,
    config: EngineConfig,
    threads: int,
    *,
    is_measuring: bool,
    note: ProgressCallback,
) -> Machine:
    """The machine of `--machine`, or this one. Raises ConfigError and StorageError."""
    if text is not None:
        return parse_machine(text)
    memory = memory_facts()
    if not is_measuring or memory.available_bytes < LEAST_TO_MEASURE:
        return assumed_machine(memory.total_bytes, memory.available_bytes, memory.limit_bytes)
    note("measure", 0, 1)
    formats = {name for shape in found.shapes for name in shape.weight_formats}
    with _disk_probe(found.files) as files:
        machine = measure_machine(files, sorted(formats), threads, config.isa, config.queue_depth)
    note("measure", 1, 1)
    return machine


@contextmanager
def _disk_probe(files: list[tuple[Path, int]]) -> Iterator[list[tuple[Path, int]]]:
    """The model's own files, or one written for the purpose where a container would lie; none where that cannot be
    written.
    """
    if any(path.stat().st_size >= 32 * nbytes for path, nbytes in files):
        yield files
        return
    with ExitStack() as stack:
        written: list[tuple[Path, int]] = []
        with suppress(
            OSError
        ):  # no room, or nothing may be written there: a typical disk is assumed
            directory = _nearest(places().models_dir)
            probe = stack.enter_context(tempfile.NamedTemporaryFile(dir=directory))
            _fill(probe.name)
            written = [(Path(probe.name), PROBE_READ)]
        yield written


def _nearest(directory: Path) -> Path:
    """The directory, or its nearest ancestor that exists."""
    return next(each for each in (directory, *directory.parents) if each.is_dir())


def _fill(name: str) -> None:
    """Bytes that no filesystem compresses, on the disk and not only in memory."""
    block = os.urandom(1 << 20)
    with Path(name).open("wb") as file:
        for _ in range(PROBE_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
