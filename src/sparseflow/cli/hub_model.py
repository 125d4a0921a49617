"""What `run ORG/NAME` does before it runs: plan, ask, prepare; the recipe is the plan's choice, said aloud."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sparseflow.cli import models
from sparseflow.cli.console import progress_bars, say
from sparseflow.cli.options import places
from sparseflow.config import EngineConfig
from sparseflow.errors import BudgetError, ConfigError
from sparseflow.units import format_bytes

if TYPE_CHECKING:
    from sparseflow.container.hub_names import HubName


def find_or_prepare(
    name: str, models_dir: Path | None, engine: EngineConfig, *, is_agreed: bool, quiet: bool
) -> Path:
    """The container that MODEL means; one that is on a hub only is planned and, once agreed, prepared.

    Raises ConfigError if nobody can be asked and `is_agreed` is not set, BudgetError if no recipe would run here, and
    what planning and preparing raise.
    """
    from sparseflow.container.hub_names import parse_hub_name

    where = places(models_dir).models_dir
    is_path = Path(name).exists() or (where / name).is_dir()
    hub_name = None if is_path else parse_hub_name(name)
    if hub_name is None or models.is_prepared(hub_name, models_dir):
        with progress_bars(quiet=quiet, in_bytes=True) as progress:
            return models.resolve(name, models_dir, progress)
    from sparseflow.prepare.hub import prepare_from_hub
    from sparseflow.prepare.models import unfinished_recipe

    recipe = unfinished_recipe(hub_name, where)
    if recipe is None or hub_name.recipe not in (None, recipe):
        recipe = _choose(name, hub_name, models_dir, engine, is_agreed=is_agreed, quiet=quiet)
    else:
        say(f"{hub_name.repo_id}: going on with {recipe}, which was begun")
    with progress_bars(quiet=quiet, in_bytes=True) as progress:
        return prepare_from_hub(
            hub_name.repo_id, where, recipe, progress, revision=hub_name.revision
        )


def _choose(
    name: str,
    hub_name: HubName,
    models_dir: Path | None,
    engine: EngineConfig,
    *,
    is_agreed: bool,
    quiet: bool,
) -> str:
    """The plan's recipe, once the person has seen the plan and agreed."""
    from sparseflow.cli.plan import machine_line, show_plan
    from sparseflow.cli.plan_model import find_machine, find_model
    from sparseflow.host.cpu import default_threads
    from sparseflow.planning.plan import Question, make_plan

    threads = engine.threads or default_threads()
    with progress_bars(quiet=quiet) as progress:
        found = find_model(name, models_dir, None, progress)
        machine = find_machine(None, found, engine, threads, is_measuring=True, note=progress)
    made = make_plan(found.shapes, Question(machine, engine, threads, 512, found.source_bytes))
    chosen = made.chosen
    if not quiet:
        say(machine_line(machine, threads))
        show_plan(made, found, to_stderr=True)
    if not chosen.fits:
        raise BudgetError(f"{hub_name.repo_id}: {chosen.recipe} {chosen.refusal}")
    question = (
        f"download {format_bytes(found.download_bytes)} of {hub_name.repo_id} and make a {chosen.recipe} container of"
        f" {format_bytes(chosen.shape.file_bytes)}"
    )
    if is_agreed:
        say(question)
    elif sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(f"{question}? add --yes to say so")
    else:
        typer.confirm(f"{question}?", abort=True, err=True)
    return chosen.recipe
