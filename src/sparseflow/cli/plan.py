"""`plan`: will it run, how fast, what must be freed; from headers alone, before anything is downloaded or loaded."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparseflow.cli.console import progress_bars, say, show_table, write_json
from sparseflow.cli.options import JsonOption, ModelsDirOption, QuietOption, with_engine_options
from sparseflow.config import EngineConfig
from sparseflow.errors import ConfigError
from sparseflow.units import format_bytes, format_seconds

if TYPE_CHECKING:
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

    threads = engine.threads or default_threads()
    with progress_bars(quiet=quiet, in_bytes=True) as progress:
        found = find_model(model, models_dir, recipe, progress)
    with progress_bars(quiet=quiet) as progress:
        where = find_machine(machine, found, engine, threads, is_measuring=measure, note=progress)
    made = make_plan(found.shapes, Question(where, engine, threads, prompt, found.source_bytes))
    if json is not None:
        write_json(_document(model, where, made), json)
    if json != "-":
        _show_machine(where, threads, quiet=quiet)
        _show(made)
        if found.download_bytes:
            print(f"download: {format_bytes(found.download_bytes)}, shard by shard; {found.room}")
    return 0 if made.chosen.fits else 1


def _document(model: str, machine: Machine, made: Plan) -> dict[str, Any]:
    return {
        "model": model,
        "machine": asdict(machine),
        "recipes": [row.to_dict() for row in made.rows],
        "chosen": made.chosen.recipe,
        "verdict": made.verdict,
        "alternatives": list(made.alternatives),
    }


def _show_machine(machine: Machine, threads: int, *, quiet: bool) -> None:
    if quiet:
        return
    say(
        f"machine ({machine.origin}): {format_bytes(machine.total_bytes)} of memory, "
        f"{format_bytes(machine.available_bytes)} available"
        + (f", limit {format_bytes(machine.limit_bytes)}" if machine.limit_bytes else "")
        + f"; memory {machine.memory / 1e9:.1f} GB/s, disk {machine.disk / 1e9:.2f} GB/s, {threads} threads"
    )


def _show(made: Plan) -> None:
    from rich.table import Table

    table = Table("recipe")
    headings = (
        "disk", "floor", "all resident", "used here", "experts kept", "hit rate", "decode tok/s",
        "prefill tok/s", "first token", "prepare",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in made.rows:
        table.add_row(*_recipe_line(row), style="bold" if row is made.chosen else None)
    show_table(table)
    _show_sum(made.chosen)
    print(made.verdict)
    for line in made.alternatives:
        print(f"or: {line}")


def _recipe_line(row: RecipePlan) -> list[str]:
    line = [
        row.recipe,
        format_bytes(row.shape.file_bytes),
        format_bytes(row.floor.total_bytes),
        format_bytes(row.resident.total_bytes),
    ]
    found, preparing = row.prediction, row.prepare_seconds
    if found is None or row.budget is None:
        line += ["does not fit", *["-"] * 5]
    else:
        line += [
            format_bytes(row.budget.total_bytes),
            f"{found.kept_share:.0%}",
            f"{found.hit_rate:.0%}",
            f"{found.decode_tokens_per_second:.1f}",
            f"{found.prefill_tokens_per_second:.0f}",
            format_seconds(found.first_token_seconds),
        ]
    return [*line, "-" if preparing is None else format_seconds(preparing)]


def _show_sum(row: RecipePlan) -> None:
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
    show_table(table)
