"""Our figures of memory beside the kernel's: anonymous, mapped files, page cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparseflow.bench.cell import Cell, run_cell
from sparseflow.bench.chain import prompt_ids
from sparseflow.bench.cold import container_files, drop_pages
from sparseflow.bench.limits import MemoryGroup
from sparseflow.bench.report import Sheet
from sparseflow.config import EngineConfig
from sparseflow.host.memory import memory_facts
from sparseflow.planning.budget import settle
from sparseflow.units import format_bytes

TOLERANCE = 0.03


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of ours beside one of the kernel's."""

    what: str
    ours: int
    source: str
    theirs: int

    @property
    def difference(self) -> float:
        """Relative to theirs; 0 if both are nothing."""
        if not self.theirs:
            return 0.0 if not self.ours else float("inf")
        return abs(self.ours - self.theirs) / self.theirs

    @property
    def agrees(self) -> bool:
        return self.difference <= TOLERANCE


def check_counters(
    container: Path, config: Mapping[str, Any], prompt: int, new: int
) -> list[Comparison]:
    """Runs one cell in a group of its own, with the container's pages dropped before.

    Raises UnsupportedError where no control group can be made, and what the run raises.
    """
    settled, budget = settle(container, EngineConfig(**config))
    limit = min(2 * budget.total_bytes + (1 << 30), memory_facts().total_bytes)
    cell = Cell(
        str(container),
        prompt_ids(container, prompt),
        new,
        config={**config, "ram_bytes": settled.ram_bytes and min(settled.ram_bytes, limit)},
    )
    drop_pages(container_files(container))
    with MemoryGroup(limit) as group:
        report = run_cell(cell, group)
    return compare(report["memory"], report["watch"]["last"])


def compare(ours: Mapping[str, int], kernel: Mapping[str, int]) -> list[Comparison]:
    """Ours: what the engine's process said of itself. kernel: what was seen from outside at the same moment."""
    anonymous, files = ours["anonymous_bytes"], ours["file_bytes"]
    return [
        Comparison("anonymous", anonymous, "/proc/PID/smaps_rollup", kernel["anonymous_bytes"]),
        Comparison(
            "anonymous", anonymous, "control group: anon or rss", kernel["group_anonymous_bytes"]
        ),
        Comparison("mapped files", files, "/proc/PID/smaps_rollup", kernel["file_bytes"]),
        Comparison(
            "page cache of the container",
            ours["page_cache_bytes"],
            "control group: file or cache",
            kernel["group_file_bytes"],
        ),
    ]


def counters_sheet(found: list[Comparison]) -> Sheet:
    """The comparisons as a table."""
    rows = [
        [
            each.what,
            format_bytes(each.ours),
            each.source,
            format_bytes(each.theirs),
            f"{each.difference:.2%}",
            "ok" if each.agrees else "DIFFERENT",
        ]
        for each in found
    ]
    headings = ("memory", "ours", "the kernel's counter", "theirs", "difference", "verdict")
    return Sheet("Our counters and the kernel's", headings, rows)
