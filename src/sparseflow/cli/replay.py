"""`replay`: what the expert cache would hit and miss on recorded routes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparseflow.cli.console import progress_bars, show_table, write_json
from sparseflow.cli.options import JsonOption, QuietOption
from sparseflow.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from sparseflow.cli.console import ProgressBars
    from sparseflow.evaluation.replay import Replay
    from sparseflow.evaluation.routes import Routes

DEFAULT_CAPACITIES = ("13.3%", "25%", "50%")


def replay(
    routes: Annotated[Path, typer.Argument(metavar="ROUTES", help="An .npz file of routes.")],
    policy: Annotated[
        str, typer.Option(metavar="scored|lru", help="Which expert the cache gives up.")
    ] = "scored",
    capacity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PCT%|SLOTS",
            help="Experts that are kept; repeatable. Default: 13.3%, 25%, 50%.",
        ),
    ] = None,
    heat_from_others: Annotated[
        bool,
        typer.Option(
            "--heat-from-others",
            help="Begin each session with the history of those that do not give its text away.",
        ),
    ] = False,
    num_experts: Annotated[
        int | None, typer.Option(metavar="N", help="Of a layer. Default: the highest id + 1.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw hit rates over capacity (needs matplotlib)."),
    ] = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Replay recorded routes through the expert cache: misses of each session, and the best possible beside them."""
    from sparseflow.evaluation.replay import parse_capacity
    from sparseflow.evaluation.replay import replay as replay_routes
    from sparseflow.evaluation.routes import read_routes

    recorded = read_routes(routes, num_experts)
    slots = [parse_capacity(text, recorded) for text in capacity or DEFAULT_CAPACITIES]
    results = []
    with progress_bars(quiet=quiet) as progress:
        for number, count in enumerate(slots):
            results.append(replay_routes(recorded, policy, count, has_heat=heat_from_others))
            progress("replay", number + 1, len(slots))
        if plot is not None:
            _draw(recorded, plot, progress)
    if json is not None:
        write_json({"routes": str(routes), "replays": [r.to_dict() for r in results]}, json)
    if json != "-":
        _show(recorded, results)


def _show(routes: Routes, results: list[Replay]) -> None:
    from rich.table import Table

    every = routes.num_layers * routes.num_experts
    table = Table("slots", "of all", "session", "lookups", "misses", "miss rate", "best possible")
    for result in results:
        size = (str(result.slots), f"{result.slots / every:.1%}")
        for row in result.sessions:
            misses = (str(row.lookups), str(row.misses), f"{row.miss_rate:.1%}")
            table.add_row(*size, row.session, *misses, f"{row.belady_miss_rate:.1%}")
        mean = f"{result.miss_rate:.1%}"
        table.add_row(*size, "mean", "", "", mean, f"{result.belady_miss_rate:.1%}")
        table.add_section()
    show_table(table)


def _draw(routes: Routes, path: Path, progress: ProgressBars) -> None:
    """Hit rate over capacity as a picture; the file's suffix says of which kind."""
    from sparseflow.evaluation.replay import hit_curves

    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'sparseflow[plot]'") from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, points in hit_curves(routes, progress).items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set(xlabel="experts kept, % of all", ylabel="decode hit rate, %", xlim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: cannot write the plot: {error}", path=str(path)) from error
