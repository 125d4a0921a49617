"""`bench --budgets` and `bench --check-counters`: whether memory is kept to, and whether we count it right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparseflow.bench.budgets import BudgetBench
from sparseflow.bench.budgets_report import (
    budgets_document,
    budgets_sheet,
    sweep_sheet,
    verdict_lines,
)
from sparseflow.bench.counters import check_counters, counters_sheet
from sparseflow.bench.machine import describe_code, describe_container, describe_machine
from sparseflow.bench.pairs import Note
from sparseflow.cli.bench_modes import Shown


class Budgets:
    """A row for each budget."""

    def __init__(
        self,
        container: Path,
        words: Sequence[str],
        prompt: int,
        new: int,
        config: Mapping[str, Any],
        note: Note,
    ) -> None:
        self._bench = BudgetBench(container, prompt, new, config, note)
        self._budgets = self._bench.parse(words)
        self._container = container
        self._is_sweeping = False

    def set_sweep(self, *, is_sweep: bool) -> None:
        """Whether other caches are measured under each budget."""
        self._is_sweeping = is_sweep

    def run(self) -> Shown:
        rows = [
            self._bench.run(name, ram_bytes, is_sweeping=self._is_sweeping)
            for name, ram_bytes in self._budgets.items()
        ]
        lines = verdict_lines(rows)
        document = {
            **budgets_document(rows),
            "machine": describe_machine(),
            "code": describe_code(),
            "container": describe_container(self._container),
        }
        is_kept = all(line.startswith("ok") for line in lines)
        return Shown(
            document,
            [budgets_sheet(rows), sweep_sheet(rows)],
            lines=lines,
            exit_code=0 if is_kept else 1,
        )


class CounterCheck:
    """Our counters beside the kernel's."""

    def __init__(
        self, container: Path, config: Mapping[str, Any], prompt: int, new: int, note: Note
    ) -> None:
        self._arguments = (container, config, prompt, new)
        self._note = note

    def run(self) -> Shown:
        self._note("counters", 0, 1)
        found = check_counters(*self._arguments)
        agree = all(each.agrees for each in found)
        document = {
            "counters": [
                {
                    "what": each.what,
                    "ours": each.ours,
                    "source": each.source,
                    "theirs": each.theirs,
                    "difference": each.difference,
                }
                for each in found
            ]
        }
        return Shown(document, [counters_sheet(found)], exit_code=0 if agree else 1)
