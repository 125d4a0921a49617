"""Whether the budget is kept: runs in control groups whose limit is exactly `--ram`, the prediction beside each.

One row for each budget: speed and peak as `plan` predicts and as they were, out-of-memory kills, swapping, the hash of
every step; and the automatic choice of cache against a sweep of others under the same limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparseflow.bench.cell import Cell, run_cell
from sparseflow.bench.chain import prompt_ids
from sparseflow.bench.cold import container_files, drop_pages
from sparseflow.bench.limits import MemoryGroup
from sparseflow.bench.pairs import Note
from sparseflow.config import EngineConfig
from sparseflow.errors import ConfigError
from sparseflow.host.cpu import default_threads
from sparseflow.host.memory import memory_facts
from sparseflow.layers.tiles import TILE_TOKENS
from sparseflow.planning.budget import (
    Budget,
    fixed_budget,
    floor_budget,
    resident_budget,
    settle_shape,
    smallest_arena,
)
from sparseflow.planning.machine import Machine, between, measure_machine, moved
from sparseflow.planning.model_shape import container_shape
from sparseflow.planning.predict import Prediction, predict
from sparseflow.units import parse_size

SPEED_TOLERANCE = 0.30
PEAK_TOLERANCE = 0.05
LEAST_OF_BEST = 0.90
STEADY = 0.25
"""A run is repeated if the machine moved by more."""
TRIES = 3
SWEEP_SHARES = (0.5, 0.75, 0.9, 1.0)
"""Of the largest cache that the limit allows beside the shortest prefill chunk."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run in its group showed."""

    cache_bytes: int
    prefill_chunk: int
    decode_tokens_per_second: float
    prefill_tokens_per_second: float
    request_seconds: float
    """Prompt and new tokens together."""
    hit_rate: float | None
    peak_bytes: int
    """Anonymous memory."""
    group_peak_bytes: int
    oom_kills: int
    pswpout: int
    sha256: str
    leases: int


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """One budget: predicted, measured, and the sweep beside it."""

    name: str
    ram_bytes: int
    budget: Budget
    prediction: Prediction
    machine: Machine
    """Measured before and after the run."""
    moved: float
    """How far it moved between: beyond a tenth the prediction is of another machine than the run."""
    measured: Measured
    sweep: tuple[Measured, ...]

    @property
    def best(self) -> Measured:
        """The fastest of the sweep and the automatic choice, for the request as a whole."""
        return min((self.measured, *self.sweep), key=lambda each: each.request_seconds)

    @property
    def share_of_best(self) -> float:
        """Speed of the automatic choice over the best one's."""
        return self.best.request_seconds / self.measured.request_seconds

    @property
    def decode_share_of_best(self) -> float:
        """The same of decode alone."""
        speeds = [each.decode_tokens_per_second for each in (self.measured, *self.sweep)]
        return self.measured.decode_tokens_per_second / max(speeds)

    def misses(self) -> list[str]:
        """What this row does not keep of the promise; empty if all holds."""
        found, ours, predicted = [], self.measured, self.prediction
        runs = (ours, *self.sweep)
        if any(each.peak_bytes > self.ram_bytes for each in runs):
            found.append("the peak is above --ram")
        if any(each.oom_kills for each in runs):
            found.append("killed for memory")
        if any(each.pswpout for each in runs):
            found.append("pages were swapped out")
        if any(each.leases for each in runs):
            found.append("leases were left")
        speed = predicted.decode_tokens_per_second / ours.decode_tokens_per_second
        if abs(speed - 1) > SPEED_TOLERANCE:
            found.append(f"decode predicted at {speed:.2f} of what was measured")
        peak = self.budget.anonymous_bytes / ours.peak_bytes
        if abs(peak - 1) > PEAK_TOLERANCE:
            found.append(f"peak predicted at {peak:.3f} of what was measured")
        if self.share_of_best < LEAST_OF_BEST:
            found.append(f"the automatic choice has {self.share_of_best:.2f} of the best speed")
        return found


class BudgetBench:
    """Measures budget after budget. REQUIRES: a control group can be made; else UnsupportedError."""

    def __init__(
        self, container: Path, prompt: int, new: int, config: Mapping[str, Any], note: Note
    ) -> None:
        """config: fields of EngineConfig beside those that a budget decides."""
        self._container = container
        self._new = new
        self._ids = prompt_ids(container, prompt)
        ctx = config.get("ctx") or prompt + new + 1
        self._config = EngineConfig(**{**config, "ctx": ctx})
        self._shape = container_shape(container)
        self._note = note

    def parse(self, words: Sequence[str]) -> dict[str, int]:
        """Budgets by name: sizes, `floor`, `resident`. Raises ConfigError."""
        named = {
            "floor": floor_budget(self._shape, self._config).total_bytes,
            "resident": resident_budget(self._shape, self._config).total_bytes,
        }
        found = {word: named[word] if word in named else parse_size(word) for word in words}
        if not found:
            raise ConfigError("--budgets: write sizes, for example floor,1500M,2G,resident")
        return found

    def run(self, name: str, ram_bytes: int, *, is_sweeping: bool) -> BudgetRow:
        """One row. Raises BudgetError if the budget is below the floor."""
        shape = self._shape
        config = replace(self._config, ram_bytes=ram_bytes)
        memory = replace(memory_facts(), limit_bytes=None)
        settled, budget = settle_shape(shape, config, memory)
        self._note(name, 0, 1)
        machine, measured, unsteady = self._measure_steadily(config, ram_bytes)
        found = predict(shape, settled, budget, machine, len(self._ids), self._new)
        sweep: list[Measured] = []
        sizes = self._sweep_sizes(config, ram_bytes) if is_sweeping else []
        for number, cache in enumerate(sizes):
            self._note(name, number + 1, len(sizes) + 1)
            sweep.append(self._measure(replace(config, cache_bytes=cache), ram_bytes))
        return BudgetRow(name, ram_bytes, budget, found, machine, unsteady, measured, tuple(sweep))

    def _measure_steadily(
        self, config: EngineConfig, ram_bytes: int
    ) -> tuple[Machine, Measured, float]:
        """A run between two measurements of the machine, repeated while they differ; the steadiest counts, with how
        far the machine moved.
        """
        steadiest: tuple[Machine, Measured, float] | None = None
        before = self._measure_machine()
        for _ in range(TRIES):
            measured = self._measure(config, ram_bytes)
            after = self._measure_machine()
            change = moved(before, after)
            if steadiest is None or change < steadiest[2]:
                steadiest = between(before, after), measured, change
            if change <= STEADY:
                break
            before = after
        assert steadiest is not None
        return steadiest

    def _sweep_sizes(self, config: EngineConfig, ram_bytes: int) -> list[int]:
        least = fixed_budget(self._shape, config, ram_bytes, TILE_TOKENS)
        largest = min(least.largest_arena(), self._shape.experts_bytes)
        smallest = smallest_arena(self._shape)
        sizes = {max(smallest, int(largest * share)) for share in SWEEP_SHARES}
        return sorted(size for size in sizes if size <= largest)

    def _measure(self, config: EngineConfig, ram_bytes: int) -> Measured:
        fields = {
            name: getattr(config, name)
            for name in ("cache_bytes", "store", "policy", "ctx", "threads", "isa", "prefill_chunk")
            if getattr(config, name) is not None
        }
        fields |= {"queue_depth": config.queue_depth, "io": config.io, "ram_bytes": ram_bytes}
        cell = Cell(str(self._container), self._ids, self._new, config=fields, hashes_logits=True)
        drop_pages(container_files(self._container))
        with MemoryGroup(ram_bytes) as group:
            return read_report(run_cell(cell, group))

    def _measure_machine(self) -> Machine:
        files = [
            (path, self._shape.blob_bytes) for path in sorted(self._container.glob("experts/*.sfi"))
        ]
        threads = self._config.threads or default_threads()
        return measure_machine(
            files, self._shape.weight_formats, threads, self._config.isa, self._config.queue_depth
        )


def read_report(report: Mapping[str, Any]) -> Measured:
    """The figures of a child's report (child.py)."""
    prefill, decode, watch = report["prefill"], report["decode"], report["watch"]
    lookups = decode["experts"]["hits"] + decode["experts"]["misses"]
    # The kernel keeps the peak of anonymous and file pages together; of files a process has the same all along.
    by_kernel = watch["peak_bytes"] - watch["last"].get("file_bytes", 0)
    return Measured(
        cache_bytes=report["budget"]["arena_bytes"],
        prefill_chunk=report["prefill_chunk"],
        decode_tokens_per_second=decode["tokens"] / decode["wall_seconds"],
        prefill_tokens_per_second=prefill["tokens"] / prefill["wall_seconds"],
        request_seconds=prefill["wall_seconds"] + decode["wall_seconds"],
        hit_rate=decode["experts"]["hits"] / lookups if lookups else None,
        peak_bytes=max(watch["anonymous_peak_bytes"], by_kernel),
        group_peak_bytes=watch["group_peak_bytes"],
        oom_kills=watch["oom_kills"],
        pswpout=watch["pswpout"],
        sha256=report["steps_sha256"],
        leases=report["leases"],
    )
