"""`list` and `remove`, and how the first argument of every other command becomes a container's directory."""

from __future__ import annotations

import contextlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparseflow.cli.options import JsonOption, ModelsDirOption, Places, places
from sparseflow.errors import ConfigError
from sparseflow.units import format_bytes

if TYPE_CHECKING:
    from sparseflow.cli.console import ProgressCallback
    from sparseflow.container.hub_names import HubName

MANIFEST = "manifest.json"
WORK, JOURNAL = ".prepare", "journal.json"


def looks_like_model(word: str, models_dir: Path | None = None) -> bool:
    """Whether a word names a model: an existing path, `demo`, `demo:RECIPE`, or a name in the models directory,
    also that of a hub's model.
    """
    if word == "demo" or word.startswith("demo:"):
        return True
    if "\0" in word or len(word) > 4096:
        return False
    try:
        where = places(models_dir).models_dir
        return Path(word).exists() or (where / word).is_dir() or _is_on_hub(word, where)
    except OSError:
        return False


def _is_on_hub(word: str, models_dir: Path) -> bool:
    """Whether a word is the name of a hub's model that is here, finished or not."""
    from sparseflow.container.hub_names import container_path, parse_hub_name
    from sparseflow.container.recipes import RECIPES

    name = parse_hub_name(word)
    return name is not None and any(
        container_path(models_dir, name.repo_id, recipe).is_dir() for recipe in RECIPES
    )


def unknown_model_message(word: str) -> str:
    """The error for a word that is neither a command nor a model; most often it was meant as a prompt."""
    return f"no model {word!r}; did you mean: sparseflow run demo {word!r}"


def resolve(
    name: str, models_dir: Path | None = None, progress: ProgressCallback | None = None
) -> Path:
    """The container that a MODEL argument means; the demo's is prepared on first use.

    Raises ConfigError if no such model exists, or if it is a checkpoint that has to be prepared first.
    """
    from sparseflow.prepare.models import resolve_model

    where = places(models_dir)
    return resolve_model(name, where.models_dir, where.cache_dir, progress=progress)


def is_prepared(name: HubName, models_dir: Path | None = None) -> bool:
    """Whether a container of a hub's model is here: of the recipe that the name says, or of any."""
    from sparseflow.prepare.models import prepared_recipes

    prepared = prepared_recipes(name, places(models_dir).models_dir)
    return bool(prepared) if name.recipe is None else name.recipe in prepared


@dataclass(frozen=True, slots=True)
class Entry:
    """One container that the machine holds, finished or not."""

    name: str
    place: str
    path: Path
    model_type: str
    recipe: str
    nbytes: int
    """On disk, for an unfinished one with what has been downloaded."""
    is_unfinished: bool
    checkpoint: Path
    """Where its checkpoint is kept, if it is."""
    checkpoint_bytes: int


def find_entries(where: Places) -> list[Entry]:
    """Containers in the models and the cache directory, by name; directories that are none are passed over."""
    entries = []
    for place, directory in (("models", where.models_dir), ("cache", where.cache_dir)):
        for path in sorted(directory.iterdir()) if directory.is_dir() else []:
            entry = _entry(place, path)
            if entry is not None:
                entries.append(entry)
    return entries


def _entry(place: str, path: Path) -> Entry | None:
    import json

    from sparseflow.container.hub_names import checkpoint_path, shown_name

    is_unfinished = not (path / MANIFEST).exists()
    if is_unfinished and not (path / WORK).is_dir():
        return None
    try:
        facts: dict[str, Any] = {}
        if not is_unfinished:
            facts = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        elif (path / WORK / JOURNAL).exists():
            facts = json.loads((path / WORK / JOURNAL).read_text(encoding="utf-8"))["identity"]
        model_type, recipe = str(facts.get("model_type", "?")), str(facts.get("recipe", "?"))
    except (OSError, ValueError, LookupError, AttributeError):
        return None
    checkpoint, name = checkpoint_path(path), shown_name(path)
    return Entry(
        name, place, path, model_type, recipe, _disk_bytes(path), is_unfinished, checkpoint,
        _disk_bytes(checkpoint),
    )  # fmt: skip


def _disk_bytes(directory: Path) -> int:
    """What the files below a directory take, holes not counted."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # a download's files come and go
            status = path.stat()
            total += min(status.st_size, status.st_blocks * 512) if path.is_file() else 0
    return total


def list_models(models_dir: ModelsDirOption = None, json: JsonOption = None) -> None:
    """Show the containers in the models and the cache directory."""
    from sparseflow.cli.console import say, show_table, write_json

    where = places(models_dir)
    entries = find_entries(where)
    if json is not None:
        rows = [
            {"name": e.name, "place": e.place, "path": str(e.path), "model_type": e.model_type,
             "recipe": e.recipe, "bytes": e.nbytes, "unfinished": e.is_unfinished,
             "checkpoint_bytes": e.checkpoint_bytes}
            for e in entries
        ]  # fmt: skip
        write_json({"models_dir": str(where.models_dir), "models": rows}, json)
        return
    if not entries:
        say(f"no containers in {where.models_dir} or {where.cache_dir}; try: sparseflow run demo")
        return
    from rich.table import Table

    table = Table("name", "model_type", "recipe", "size", "state", "place", "path")
    for entry in entries:
        size = format_bytes(entry.nbytes)
        state = "unfinished" if entry.is_unfinished else "finished"
        if entry.checkpoint_bytes:
            state += f", checkpoint {format_bytes(entry.checkpoint_bytes)}"
        table.add_row(
            entry.name, entry.model_type, entry.recipe, size, state, entry.place, str(entry.path)
        )
    show_table(table)


def remove(
    name: Annotated[str, typer.Argument(help="A name that `sparseflow list` shows.")],
    models_dir: ModelsDirOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a container, finished or not, with what was downloaded for it."""
    from sparseflow.cli.console import say

    found = [e for e in find_entries(places(models_dir)) if name in (e.name, e.path.name)]
    if not found:
        raise ConfigError(f"no container named {name!r}; `sparseflow list` shows what there is")
    entry = found[0]
    size = format_bytes(entry.nbytes + entry.checkpoint_bytes)
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"{name}: {size} would be deleted; add --yes to say so")
        typer.confirm(f"delete {entry.path} ({size})?", abort=True, err=True)
    if entry.is_unfinished:
        _remove_unfinished(entry)
    else:
        _remove_container(entry)
    if entry.checkpoint_bytes:
        shutil.rmtree(entry.checkpoint)
    say(f"removed {entry.path} ({size})")


def _remove_container(entry: Entry) -> None:
    from sparseflow.experts.heat import heat_path

    heat_path(places().cache_dir / "heat", (entry.path / MANIFEST).read_bytes()).unlink(
        missing_ok=True
    )
    # The manifest goes first: a container that is half deleted must not look whole.
    (entry.path / MANIFEST).unlink()
    shutil.rmtree(entry.path)


def _remove_unfinished(entry: Entry) -> None:
    """Raises StorageError while another process works on it."""
    from sparseflow.prepare.workspace import open_workspace

    with open_workspace(entry.path, wait=False):
        shutil.rmtree(entry.path)
