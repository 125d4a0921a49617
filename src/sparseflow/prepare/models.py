"""From the MODEL of a command line to a container's directory; the demo's container is prepared on first use."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.index import holds_weights
from sparseflow.checkpoint.open import is_gguf
from sparseflow.container.manifest import FORMAT_VERSION, MANIFEST_NAME
from sparseflow.container.recipes import DEFAULT_RECIPE, get_recipe
from sparseflow.errors import ConfigError, ContainerError, UnsupportedError
from sparseflow.prepare.prepare import Progress, prepare
from sparseflow.prepare.source import copied_files, source_identity

DEMO_NAME = "demo"


def resolve_model(
    name: str,
    models_dir: Path,
    cache_dir: Path,
    recipe: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """The container that `name` means: an existing path, `demo` or `demo:RECIPE`, or a name in `models_dir`.

    `recipe` is for the demo, whose name may say another. Raises ConfigError if there is no such model or it is a
    checkpoint that has to be prepared first, ContainerError if a directory is neither, UnsupportedError for ORG/NAME
    on a hub.
    """
    path = Path(name)
    if path.exists():
        return _as_container(path)
    word, _, named_recipe = name.partition(":")
    if word == DEMO_NAME:
        return _demo_container(cache_dir, named_recipe or recipe or DEFAULT_RECIPE, progress)
    if name and not path.is_absolute() and ".." not in path.parts and (models_dir / name).is_dir():
        return _as_container(models_dir / name)
    if (
        name.count("/") == 1
        and all(name.split("/"))
        and " " not in name
        and not name.startswith(".")
    ):
        raise UnsupportedError(
            f"no model {name!r} here, and models are not fetched from a hub yet; download its checkpoint, then:"
            " sparseflow prepare DIRECTORY --output CONTAINER"
        )
    raise ConfigError(f"no model {name!r}; did you mean: sparseflow run demo {name!r}")


def _as_container(path: Path) -> Path:
    if is_gguf(path) or (not (path / MANIFEST_NAME).exists() and holds_weights(path)):
        kind = "GGUF file" if is_gguf(path) else "checkpoint"
        raise ConfigError(
            f"{path}: a {kind}, not a container; first: sparseflow prepare {path} --output DIR"
        )
    if not (path / MANIFEST_NAME).is_file():
        raise ContainerError(
            f"{path}: no {MANIFEST_NAME}; not a container, or one whose `prepare` has not ended"
        )
    return path


def _demo_container(cache_dir: Path, recipe: str, progress: Progress | None) -> Path:
    from sparseflow import demo

    get_recipe(recipe)
    source = demo.checkpoint_path()
    with Checkpoint.open(source) as checkpoint:
        identity = [FORMAT_VERSION, source_identity(checkpoint), copied_files(checkpoint)]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    output = cache_dir / f"{DEMO_NAME}-{recipe}-{digest[:12]}"
    if (output / MANIFEST_NAME).is_file():
        return output
    return prepare(source, output, recipe, progress, wait=True)
