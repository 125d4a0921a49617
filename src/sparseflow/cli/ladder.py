"""The `--ladder` branch of `verify`: shows every row of the identity ladder and one verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparseflow.cli.console import progress_bars, say, show_table, write_json
from sparseflow.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparseflow.evaluation.ladder import Outcome


def verify_ladder(
    container: Path,
    *,
    is_quick: bool = False,
    json: str | None = None,
    quiet: bool = False,
) -> int:
    """Runs the ladder; the exit code is 1 if rows differ."""
    from sparseflow.evaluation import ladder
    from sparseflow.evaluation.row_process import RowProcess
    from sparseflow.planning.budget import arena_sizes
    from sparseflow.tokenizer.tokenizer import Tokenizer

    partial, full = arena_sizes(container)
    choose = ladder.quick_rows if is_quick else ladder.all_rows
    rows = choose(partial, full)
    tokenizer = Tokenizer.open(container)
    prompt = ladder.choose_prompt(lambda text: len(tokenizer.encode(text, add_special_tokens=True)))
    run_row = RowProcess(container, prompt, ladder.NEW_TOKENS)
    with progress_bars(quiet=quiet) as progress:
        outcomes = ladder.climb(rows, run_row, progress)
    verdict = ladder.judge(outcomes)
    if json is not None:
        document = {
            "container": str(container),
            "is_identical": verdict.is_identical,
            "verdict": verdict.sentence,
            "rows": [outcome.to_dict() for outcome in outcomes],
        }
        write_json(document, json)
    if json != "-":
        _show(outcomes)
        print(f"{'ok' if verdict.is_identical else 'DIFFERENT'}: {verdict.sentence}")
    elif not verdict.is_identical:
        say(f"DIFFERENT: {verdict.sentence}")
    return 0 if verdict.is_identical else 1


def _show(outcomes: Sequence[Outcome]) -> None:
    from rich.table import Table

    table = Table("row", "store", "cache", "policy", "threads", "chunk", "isa", title=None)
    for heading in ("hits", "misses", "evictions", "read"):
        table.add_column(heading, justify="right")
    table.add_column("direct I/O")
    table.add_column("sha256")
    for number, outcome in enumerate(outcomes, 1):
        table.add_row(str(number), *_cells(outcome))
    show_table(table)


def _cells(outcome: Outcome) -> list[str]:
    row = outcome.row
    is_streaming = row.store == "streaming"
    cells = [
        row.store,
        "all" if row.cache_bytes is None else format_bytes(row.cache_bytes),
        row.policy if is_streaming else "-",
        str(row.threads),
        str(row.prefill_chunk),
        row.isa,
    ]
    if outcome.report is None:
        return [
            *cells,
            "",
            "",
            "",
            "",
            "",
            f"not run: {outcome.not_run}" if outcome.not_run else outcome.failure,
        ]
    experts = outcome.report["experts"]
    cells[5] = outcome.report["isa"]
    counts = [str(experts[name]) for name in ("hits", "misses", "evictions")]
    direct = ("yes" if experts["direct_io"] else "no") if is_streaming else "-"
    return [*cells, *counts, format_bytes(experts["bytes_read"]), direct, outcome.sha256[:16]]
