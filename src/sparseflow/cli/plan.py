"""`plan`: will it run, how fast, what must be freed; from headers alone, before anything is downloaded or loaded."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparseflow.cli.console import progress_bars, say, show_table, write_json
from sparseflow.cli.options import JsonOption, ModelsDirOption, QuietOption, with_engine_options
from sparseflow.config import EngineConfig
from sparseflow.errors import ConfigError
from sparseflow.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from sparseflow.cli.plan_model import Found
    from sparseflow.planning.machine import Machine
    from sparseflow.planning.plan import Plan, RecipePlan


@with_engine_options
def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            help="A container, a checkpoint's directory, a name, or ORG/NAME on a hub (headers alone are fetched).",
        ),
    ] = "demo",
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Of a checkpoint: this recipe alone.", show_default=False
        ),
    ] = None,
    prompt: Annotated[
        int, typer.Option(metavar="TOKENS", help="Prompt whose first token is predicted.")
    ] = 512,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="ram=SIZE[,disk=RATE][,memory=RATE]",
            help="Another machine, e.g. ram=8GiB,disk=1.9GB/s,memory=35GB/s.",
            show_default=False,
        ),
    ] = None,
    measure: Annotated[
        bool, typer.Option(help="Measure memory, disk and kernels: a few seconds.")
    ] = True,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw predicted speed over memory, a line for each recipe (.svg, .png; needs matplotlib).",
        ),
    ] = None,
    models_dir: ModelsDirOption = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
    *,
    engine: EngineConfig,
) -> int:
    """Tell before loading, or downloading, whether a model runs here, how fast, and what must be freed."""
    if prompt < 1:
        raise ConfigError(f"--prompt {prompt}: must be at least 1")
    from sparseflow.cli.plan_model import find_machine, find_model
    from sparseflow.host.cpu import default_threads
    from sparseflow.planning.plan import Question, make_plan
    from sparseflow.planning.plot import check_plot, draw

    if plot is not None:
        check_plot(plot)
    threads = engine.threads or default_threads()
    with progress_bars(quiet=quiet, in_bytes=True) as progress:
        found = find_model(model, models_dir, recipe, progress, engine.heat_dir)
    with progress_bars(quiet=quiet) as progress:
        where = find_machine(machine, found, engine, threads, is_measuring=measure, note=progress)
    question = Question(where, engine, threads, prompt, found.source_bytes, found.heat)
    made = make_plan(found.shapes, question)
    if plot is not None:
        draw(found.shapes, question, plot)
    if json is not None:
        write_json(_document(model, where, made), json)
    if json != "-":
        if not quiet:
            say(machine_line(where, threads))
        show_plan(made, found)
    return 0 if made.chosen.fits else 1


def _document(model: str, machine: Machine, made: Plan) -> dict[str, Any]:
    return {
        "model": model,
        "machine": asdict(machine),
        "recipes": [row.to_dict() for row in made.rows],
        "chosen": made.chosen.recipe,
        "verdict": made.verdict,
        "notes": list(made.notes),
        "alternatives": list(made.alternatives),
    }


def machine_line(machine: Machine, threads: int) -> str:
    """What the predictions stand on."""
    limit = f", limit {format_bytes(machine.limit_bytes)}" if machine.limit_bytes else ""
    return (
        f"machine ({machine.origin}): {format_bytes(machine.total_bytes)} of memory, "
        f"{format_bytes(machine.available_bytes)} available{limit}; "
        f"memory {machine.memory / 1e9:.1f} GB/s, disk {machine.disk / 1e9:.2f} GB/s, {threads} threads"
    )


def show_plan(made: Plan, found: Found, *, to_stderr: bool = False) -> None:
    """Recipes side by side, the sum of the chosen one line by line, the verdict, what would avoid streaming."""
    from rich.table import Table

    table = Table("recipe")
    columns = [_recipe_column(row) for row in made.rows]
    for row in made.rows:
        is_chosen = row is made.chosen
        table.add_column(row.recipe, justify="right", style="bold" if is_chosen else None)
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    show_table(table, to_stderr=to_stderr)
    show_table(_sum_table(made.chosen), to_stderr=to_stderr)
    lines = [made.verdict, *(f"note: {line}" for line in made.notes)]
    lines += [f"or: {line}" for line in made.alternatives]
    if found.heat is not None and not made.chosen.is_resident:
        lines.append(
            "note: hit rates allow for what earlier runs of this container chose (--no-heat: do not)"
        )
    if found.download_bytes:
        lines.append(
            f"download: {format_bytes(found.download_bytes)}, one shard after another; on disk at most"
            f" {format_bytes(found.spare_bytes)} beside the container"
        )
    for line in lines:
        print(line, file=sys.stderr if to_stderr else sys.stdout)


def _recipe_column(row: RecipePlan) -> dict[str, str]:
    """What is said of one recipe, by what it is about: few columns, since a terminal may be narrow."""
    found, preparing = row.prediction, row.prepare_seconds
    column = {
        "on disk": format_bytes(row.shape.file_bytes),
        "floor of --ram": format_bytes(row.floor.total_bytes),
        "all in memory": format_bytes(row.resident.total_bytes),
        "used here": "does not fit" if row.budget is None else format_bytes(row.budget.total_bytes),
        "experts kept": "-" if found is None else f"{found.kept_share:.0%}",
        "hit rate": "-" if found is None else f"{found.hit_rate:.0%}",
        "decode tok/s": "-" if found is None else f"{found.decode_tokens_per_second:.1f}",
        "prefill tok/s": "-" if found is None else f"{found.prefill_tokens_per_second:.0f}",
        "first token": "-" if found is None else format_seconds(found.first_token_seconds),
    }
    return column if preparing is None else {**column, "prepare": format_seconds(preparing)}


def _sum_table(row: RecipePlan) -> Table:
    """Every line of the sum, here and at the floor."""
    from rich.table import Table

    table = Table(f"memory, {row.recipe}")
    table.add_column("floor", justify="right")
    table.add_column("here", justify="right")
    here = {} if row.budget is None else row.budget.lines()
    for name, nbytes in row.floor.lines().items():
        table.add_row(name, format_bytes(nbytes), format_bytes(here[name]) if here else "-")
    table.add_section()
    total = "-" if row.budget is None else format_bytes(row.budget.total_bytes)
    table.add_row("all", format_bytes(row.floor.total_bytes), total)
    if row.budget is not None:
        table.add_row("--ram", str(row.floor.total_bytes), format_bytes(row.budget.ram_bytes))
    return table
