"""From the MODEL of a command line to a container's directory; the demo's container is prepared on first use."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.index import holds_weights
from sparseflow.checkpoint.open import is_gguf
from sparseflow.container.hub_names import HubName, container_path, parse_hub_name
from sparseflow.container.manifest import FORMAT_VERSION, MANIFEST_NAME
from sparseflow.container.recipes import DEFAULT_RECIPE, RECIPES, get_recipe
from sparseflow.errors import ConfigError, ContainerError

if TYPE_CHECKING:
    from sparseflow.prepare.prepare import Progress

DEMO_NAME = "demo"


def resolve_model(
    name: str,
    models_dir: Path,
    cache_dir: Path,
    recipe: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """The container that `name` means: an existing path, `demo` or `demo:RECIPE`, a name in `models_dir`, or a hub's
    model ORG/NAME or ORG/NAME:RECIPE that has been prepared.

    `recipe` is for names that do not say one. Raises ConfigError if there is no such model or it is a checkpoint, or on
    a hub, and has to be prepared first; ContainerError if a directory is neither.
    """
    path = Path(name)
    if path.exists():
        return _as_container(path)
    word, _, named_recipe = name.partition(":")
    if word == DEMO_NAME:
        return _demo_container(cache_dir, named_recipe or recipe or DEFAULT_RECIPE, progress)
    if name and not path.is_absolute() and ".." not in path.parts and (models_dir / name).is_dir():
        return _as_container(models_dir / name)
    hub_name = parse_hub_name(name)
    if hub_name is not None:
        return _hub_container(hub_name, models_dir, hub_name.recipe or recipe)
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


def prepared_recipes(name: HubName, models_dir: Path) -> dict[str, Path]:
    """The finished containers of a hub's model, by recipe."""
    paths = {known: container_path(models_dir, name.repo_id, known) for known in RECIPES}
    return {known: path for known, path in paths.items() if (path / MANIFEST_NAME).is_file()}


def unfinished_recipe(name: HubName, models_dir: Path) -> str | None:
    """The recipe of a hub's model that was begun and has not ended; None if there is none."""
    for known in RECIPES:
        path = container_path(models_dir, name.repo_id, known)
        if path.is_dir() and not (path / MANIFEST_NAME).exists():
            return known
    return None


def _hub_container(name: HubName, models_dir: Path, recipe: str | None) -> Path:
    prepared = prepared_recipes(name, models_dir)
    if recipe is None and len(prepared) == 1:
        return next(iter(prepared.values()))
    wanted = get_recipe(recipe or DEFAULT_RECIPE).name
    if wanted in prepared:
        return prepared[wanted]
    if recipe is None and prepared:
        names = ", ".join(f"{name.repo_id}:{known}" for known in prepared)
        raise ConfigError(f"{name.repo_id}: several recipes are prepared: {names}; name one")
    revision = "" if name.revision is None else f"@{name.revision}"
    raise ConfigError(
        f"no model {name.repo_id!r} ({wanted}) here; if a hub has it, first: sparseflow prepare"
        f" {name.repo_id}{revision} --recipe {wanted}"
    )


def _demo_container(cache_dir: Path, recipe: str, progress: Progress | None) -> Path:
    # Here, so that finding a container, or refusing one, loads no numerical library.
    from sparseflow import demo
    from sparseflow.prepare.prepare import prepare
    from sparseflow.prepare.source import copied_files, source_identity

    get_recipe(recipe)
    source = demo.checkpoint_path()
    with Checkpoint.open(source) as checkpoint:
        identity = [FORMAT_VERSION, source_identity(checkpoint), copied_files(checkpoint)]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    output = cache_dir / f"{DEMO_NAME}-{recipe}-{digest[:12]}"
    if (output / MANIFEST_NAME).is_file():
        return output
    return prepare(source, output, recipe, progress, wait=True)
