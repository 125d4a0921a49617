"""`list` and `remove`, and how the first argument of every other command becomes a container's directory."""

from __future__ import annotations

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

MANIFEST = "manifest.json"


def looks_like_model(word: str, models_dir: Path | None = None) -> bool:
    """Whether a word names a model: an existing path, `demo`, `demo:RECIPE`, or a name in the models directory."""
    if word == "demo" or word.startswith("demo:"):
        return True
    if "\0" in word or len(word) > 4096:
        return False
    try:
        return Path(word).exists() or (places(models_dir).models_dir / word).is_dir()
    except OSError:
        return False


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


@dataclass(frozen=True, slots=True)
class Entry:
    """One container that the machine holds."""

    name: str
    place: str
    path: Path
    model_type: str
    recipe: str
    nbytes: int


def find_entries(where: Places) -> list[Entry]:
    """Containers in the models and the cache directory, by name; directories that are none are passed over."""
    import json

    entries = []
    for place, directory in (("models", where.models_dir), ("cache", where.cache_dir)):
        for manifest in sorted(directory.glob(f"*/{MANIFEST}")):
            try:
                document: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            path = manifest.parent
            entries.append(
                Entry(
                    name=path.name,
                    place=place,
                    path=path,
                    model_type=str(document.get("model_type", "?")),
                    recipe=str(document.get("recipe", "?")),
                    nbytes=sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
                )
            )
    return entries


def list_models(models_dir: ModelsDirOption = None, json: JsonOption = None) -> None:
    """Show the containers in the models and the cache directory."""
    from sparseflow.cli.console import say, show_table, write_json

    where = places(models_dir)
    entries = find_entries(where)
    if json is not None:
        rows = [
            {"name": e.name, "place": e.place, "path": str(e.path), "model_type": e.model_type,
             "recipe": e.recipe, "bytes": e.nbytes}
            for e in entries
        ]  # fmt: skip
        write_json({"models_dir": str(where.models_dir), "models": rows}, json)
        return
    if not entries:
        say(f"no containers in {where.models_dir} or {where.cache_dir}; try: sparseflow run demo")
        return
    from rich.table import Table

    table = Table("name", "model_type", "recipe", "size", "place", "path")
    for entry in entries:
        size = format_bytes(entry.nbytes)
        table.add_row(
            entry.name, entry.model_type, entry.recipe, size, entry.place, str(entry.path)
        )
    show_table(table)


def remove(
    name: Annotated[str, typer.Argument(help="A name that `sparseflow list` shows.")],
    models_dir: ModelsDirOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a container from the models or the cache directory."""
    from sparseflow.cli.console import say
    from sparseflow.experts.heat import heat_path

    found = [entry for entry in find_entries(places(models_dir)) if entry.name == name]
    if not found:
        raise ConfigError(f"no container named {name!r}; `sparseflow list` shows what there is")
    entry = found[0]
    size = format_bytes(entry.nbytes)
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"{name}: {size} would be deleted; add --yes to say so")
        typer.confirm(f"delete {entry.path} ({size})?", abort=True, err=True)
    heat_path(places().cache_dir / "heat", (entry.path / MANIFEST).read_bytes()).unlink(
        missing_ok=True
    )
    # The manifest goes first: a container that is half deleted must not look whole.
    (entry.path / MANIFEST).unlink()
    shutil.rmtree(entry.path)
    say(f"removed {entry.path} ({size})")
