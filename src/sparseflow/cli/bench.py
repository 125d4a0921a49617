"""`bench`: measured runs beside the hardware's limit and beside a peer. Numbers go to stdout, progress to stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparseflow.cli import models
from sparseflow.cli.console import progress_bars, say, show_table, write_json
from sparseflow.cli.options import JsonOption, ModelsDirOption, PresetOption, QuietOption
from sparseflow.errors import ConfigError
from sparseflow.planning.presets import get_preset
from sparseflow.units import parse_size

if TYPE_CHECKING:
    from sparseflow.bench.report import Sheet

PEER_NAME = "llama.cpp"


def bench(
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="A container, a name, demo or demo:RECIPE.")
    ] = "demo",
    prompt: Annotated[
        str,
        typer.Option(metavar="N,N", help="Prompt lengths, in tokens; decode follows the first."),
    ] = "512",
    new: Annotated[int, typer.Option(metavar="N", help="Decode steps that are measured.")] = 64,
    warm_up: Annotated[
        int, typer.Option(metavar="N", help="Steps before those; 64 for a steady cache.")
    ] = 8,
    store: Annotated[str | None, typer.Option(metavar="auto|resident|streaming")] = None,
    cache: Annotated[
        str | None,
        typer.Option(metavar="SIZE,SIZE", help="Expert caches to stream with, a row each."),
    ] = None,
    sweep_cache: Annotated[
        bool, typer.Option("--sweep-cache", help="Caches from 2.5 % to all experts, and a plot.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the plot of a sweep goes (.svg, .png)."),
    ] = None,
    ram: Annotated[str | None, typer.Option(metavar="SIZE", help="Bound on all memory.")] = None,
    preset: PresetOption = None,
    ctx: Annotated[int | None, typer.Option(metavar="TOKENS", help="Longest sequence.")] = None,
    threads: Annotated[int | None, typer.Option(metavar="N")] = None,
    isa: Annotated[str, typer.Option(metavar="NAME", help="Instruction set.")] = "auto",
    queue_depth: Annotated[int | None, typer.Option(metavar="N", help="Reads in flight.")] = None,
    io: Annotated[str, typer.Option(metavar="auto|pread|io_uring")] = "auto",
    prefill_chunk: Annotated[int | None, typer.Option(metavar="TOKENS")] = None,
    cold: Annotated[
        bool, typer.Option("--cold/--warm", help="Drop the container's pages before each run.")
    ] = False,
    pairs: Annotated[int, typer.Option(metavar="N", help="Runs of each row, probes between.")] = 3,
    limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Run in a memory control group of this size.")
    ] = None,
    peer: Annotated[
        str | None, typer.Option(metavar="llama.cpp=DIR", help="A build of it to run alternately.")
    ] = None,
    peer_model: Annotated[Path | None, typer.Option(metavar="FILE", help="Its GGUF.")] = None,
    peer_driver: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What runs it. Default: benchmarks/peers of a checkout."),
    ] = None,
    budgets: Annotated[
        str | None,
        typer.Option(
            metavar="floor,SIZE,...,resident",
            help="Run under each of these as --ram in a control group of that size; with --sweep-cache other"
            " caches beside the automatic one.",
        ),
    ] = None,
    check_counters: Annotated[
        bool, typer.Option("--check-counters", help="Only compare our counters with the kernel's.")
    ] = False,
    check_chain: Annotated[
        int | None,
        typer.Option(metavar="N", help="Only check N greedy ids against the model's chain."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="BF16", help="Only compare routes and logits with this container."),
    ] = None,
    report: Annotated[
        str | None, typer.Option(metavar="targets", help="Measure every target and judge.")
    ] = None,
    suite: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Targets: containers, peers, data (TOML, JSON)."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="D1,D2", help="Targets: measure these alone.")
    ] = None,
    int8: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Targets: int8 container.")
    ] = None,
    int4: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Targets: int4 container.")
    ] = None,
    int4_small: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Targets: its small twin.")
    ] = None,
    full: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Targets: full geometry, int4.")
    ] = None,
    peer_avx2: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Targets: AVX2 build.")
    ] = None,
    peer_q8: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Targets: Q8_0 GGUF.")
    ] = None,
    peer_q4: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Targets: Q4_0 GGUF.")
    ] = None,
    peer_full: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Targets: full GGUF.")
    ] = None,
    earlier: Annotated[
        Path | None,
        typer.Option(
            "--continue", metavar="FILE", help="Targets: keep what this report (--json) measured."
        ),
    ] = None,
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Write docs/results.md and its picture (checkout).")
    ] = False,
    models_dir: ModelsDirOption = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> int:
    """Measure speed: beside the memory's and the disk's limit, and beside a peer."""
    from sparseflow.cli.bench_budgets import Budgets, CounterCheck
    from sparseflow.cli.bench_checks import Checks
    from sparseflow.cli.bench_modes import Measuring, Shown, Targets

    build = _peer_build(peer)
    lengths = _counts(prompt, "--prompt")
    config = _engine_fields(preset, store, ram, ctx, threads, isa, queue_depth, io, prefill_chunk)
    if report not in (None, "targets"):
        raise ConfigError(f"--report: unknown {report!r}; known: targets")
    with progress_bars(quiet=quiet, in_bytes=True) as preparing:
        container = models.resolve(model, models_dir, preparing)
        reference_path = models.resolve(reference, models_dir, preparing) if reference else None
    with progress_bars(quiet=quiet) as note:
        mode: Checks | Measuring | Targets | Budgets | CounterCheck
        if report == "targets":
            given = {
                "int8": int8, "int4": int4, "int4_small": int4_small, "full": full, "peer": build,
                "peer_avx2": peer_avx2, "peer_q8": peer_q8, "peer_q4": peer_q4, "peer_full": peer_full,
                "peer_driver": peer_driver, "threads": threads,
            }  # fmt: skip
            mode = Targets(container, suite, given, _words(only), note)
            mode.set_sweep(is_sweep=sweep_cache)
            mode.go_on_from(earlier)
        elif check_counters:
            mode = CounterCheck(container, config, lengths[0], new, note)
        elif budgets is not None:
            mode = Budgets(container, _words(budgets), lengths[0], new, config, note)
            mode.set_sweep(is_sweep=sweep_cache)
        elif check_chain is not None or reference_path is not None:
            mode = Checks(container, lengths[0], check_chain, reference_path, config, note)
            mode.set_peer(build, peer_model, peer_driver)
        else:
            caches = [parse_size(text) for text in _words(cache)]
            mode = Measuring(container, lengths, new, warm_up, config, pairs, note)
            mode.set_caches(caches, is_sweep=sweep_cache, plot=plot)
            mode.set_conditions(limit_bytes=parse_size(limit) if limit else None, is_cold=cold)
            mode.set_peer(build, peer_model, peer_driver)
        shown: Shown = mode.run()
    _show(shown, json, quiet=quiet)
    if write_docs:
        _write_docs(shown)
    return shown.exit_code


def _show(shown: Any, json: str | None, *, quiet: bool) -> None:
    if json is not None:
        write_json(shown.document, json)
    if not quiet:
        for fact in shown.facts:
            say(fact)
    if json != "-":
        for sheet in shown.sheets:
            if sheet.rows:
                show_table(_rich_table(sheet))
        for line in shown.lines:
            print(line)


def _rich_table(sheet: Sheet) -> Any:
    from rich.table import Table

    table = Table(*sheet.headings, title=sheet.title, title_justify="left")
    for row in sheet.rows:
        table.add_row(*row)
    return table


def _without_directories(word: str) -> str:
    """Where files lie on one machine is nothing for a page."""
    option, is_option, value = word.partition("=")
    path = value if is_option else word
    name = Path(path).name if path.startswith("/") else path
    return f"{option}={name}" if is_option else name


def _write_docs(shown: Any) -> None:
    from sparseflow.bench.documents import write_documents

    root = Path(__file__).parents[3]
    command = " ".join(["sparseflow", *(_without_directories(word) for word in sys.argv[1:])])
    for path in write_documents(root, command, shown.facts, shown.sheets, shown.points):
        say(f"wrote {path}")


def _engine_fields(
    preset: str | None,
    store: str | None,
    ram: str | None,
    ctx: int | None,
    threads: int | None,
    isa: str,
    queue_depth: int | None,
    io: str,
    prefill_chunk: int | None,
) -> dict[str, Any]:
    """Fields of EngineConfig that were given, checked."""
    from sparseflow.config import EngineConfig

    given: dict[str, Any] = {
        "store": store,
        "ram_bytes": parse_size(ram) if ram else None,
        "ctx": ctx,
        "threads": threads,
        "isa": isa,
        "queue_depth": queue_depth,
        "io": io,
        "prefill_chunk": prefill_chunk,
    }
    fields = {} if preset is None else dict(get_preset(preset).fields)
    fields |= {name: value for name, value in given.items() if value is not None}
    EngineConfig(**fields)
    return fields


def _peer_build(text: str | None) -> Path | None:
    if text is None:
        return None
    name, separator, path = text.partition("=")
    if name != PEER_NAME or not separator or not path:
        raise ConfigError(f"--peer {text}: write {PEER_NAME}=BUILD_OR_PREFIX")
    return Path(path)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _counts(text: str, option: str) -> list[int]:
    words = _words(text)
    if not words or not all(word.isdigit() and int(word) > 0 for word in words):
        raise ConfigError(f"{option} {text}: write counts such as 512 or 512,2048")
    return [int(word) for word in words]
