"""The table of `bench --budgets`, its verdict and its document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sparseflow.bench.budgets import BudgetRow, Measured
from sparseflow.bench.report import Sheet
from sparseflow.units import format_bytes


def budgets_sheet(rows: Sequence[BudgetRow]) -> Sheet:
    """A line for each budget."""
    headings = (
        "budget", "--ram = limit", "cache", "chunk", "decode tok/s: predicted", "measured", "ratio",
        "prefill tok/s: predicted", "measured", "hit rate: predicted", "measured",
        "peak anonymous: predicted", "measured", "ratio", "OOM", "pswpout", "hash",
        "machine moved",
    )  # fmt: skip
    return Sheet("Budgets kept", headings, [_line(row) for row in rows])


def _line(row: BudgetRow) -> list[str]:
    ours, predicted = row.measured, row.prediction
    speed = predicted.decode_tokens_per_second / ours.decode_tokens_per_second
    hit = "-" if ours.hit_rate is None else f"{ours.hit_rate:.1%}"
    return [
        row.name,
        format_bytes(row.ram_bytes),
        format_bytes(ours.cache_bytes),
        str(ours.prefill_chunk),
        f"{predicted.decode_tokens_per_second:.1f}",
        f"{ours.decode_tokens_per_second:.1f}",
        f"{speed:.2f}",
        f"{predicted.prefill_tokens_per_second:.0f}",
        f"{ours.prefill_tokens_per_second:.0f}",
        f"{predicted.hit_rate:.1%}",
        hit,
        format_bytes(row.budget.anonymous_bytes),
        format_bytes(ours.peak_bytes),
        f"{row.budget.anonymous_bytes / ours.peak_bytes:.3f}",
        str(sum(each.oom_kills for each in (ours, *row.sweep))),
        str(sum(each.pswpout for each in (ours, *row.sweep))),
        ours.sha256[:12],
        f"{row.moved:.0%}",
    ]


def sweep_sheet(rows: Sequence[BudgetRow]) -> Sheet:
    """The automatic choice among others under the same limit."""
    headings = (
        "budget", "cache", "chunk", "prefill tok/s", "decode tok/s", "request s", "of the best",
        "decode, of the best",
    )  # fmt: skip
    lines = []
    for row in rows:
        if not row.sweep:
            continue
        fastest = max(each.decode_tokens_per_second for each in (row.measured, *row.sweep))
        for label, each in [("automatic", row.measured), *(("", other) for other in row.sweep)]:
            lines.append(_sweep_line(row, label, each, fastest))
    return Sheet("The automatic choice beside others", headings, lines)


def _sweep_line(row: BudgetRow, label: str, each: Measured, fastest: float) -> list[str]:
    cache = format_bytes(each.cache_bytes)
    return [
        row.name,
        f"{cache} ({label})" if label else cache,
        str(each.prefill_chunk),
        f"{each.prefill_tokens_per_second:.0f}",
        f"{each.decode_tokens_per_second:.1f}",
        f"{each.request_seconds:.1f}",
        f"{row.best.request_seconds / each.request_seconds:.2f}",
        f"{each.decode_tokens_per_second / fastest:.2f}",
    ]


def verdict_lines(rows: Sequence[BudgetRow]) -> list[str]:
    """What is not kept, a line each, or one line that all is."""
    lines = [f"MISSED: {row.name}: {miss}" for row in rows for miss in row.misses()]
    hashes = {each.sha256 for row in rows for each in (row.measured, *row.sweep)}
    if len(hashes) > 1:
        lines.append(f"MISSED: {len(hashes)} hashes where one was expected")
    runs = sum(1 + len(row.sweep) for row in rows)
    return lines or [
        f"ok: {len(rows)} budgets in {runs} runs: no peak above --ram, none killed, nothing swapped out, one hash,"
        " speed within 30 %, peak within 5 %, the automatic choice at 90 % of the best or more"
    ]


def budgets_document(rows: Sequence[BudgetRow]) -> dict[str, Any]:
    """Everything, as plain values."""
    return {
        "budgets": [
            {
                "name": row.name,
                "ram_bytes": row.ram_bytes,
                "budget": row.budget.to_dict(),
                "prediction": asdict(row.prediction),
                "machine": asdict(row.machine),
                "moved": row.moved,
                "measured": asdict(row.measured),
                "sweep": [asdict(each) for each in row.sweep],
                "share_of_best": row.share_of_best,
                "decode_share_of_best": row.decode_share_of_best,
                "misses": row.misses(),
            }
            for row in rows
        ]
    }
