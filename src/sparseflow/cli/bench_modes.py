"""What `bench` does: measure rows, or run the targets. Each returns what to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparseflow.bench.earlier import Earlier, read_report
from sparseflow.bench.measure import Plan, Row, measure
from sparseflow.bench.pairs import Note
from sparseflow.bench.peer import DRIVER, Peer, Trial
from sparseflow.bench.plot import Point, draw
from sparseflow.bench.report import (
    Sheet,
    cells_sheet,
    facts_line,
    limits_sheet,
    split_sheet,
    targets_sheet,
    trials_sheet,
)
from sparseflow.bench.searches import search_best
from sparseflow.bench.suite import Suite, merge, read_suite
from sparseflow.bench.target_runs import TargetRuns
from sparseflow.bench.target_values import INTERRUPTED, run_targets
from sparseflow.bench.targets import all_met
from sparseflow.container.manifest import read_manifest
from sparseflow.errors import ConfigError
from sparseflow.planning.floor import token_bytes
from sparseflow.planning.plot import check_plot
from sparseflow.units import format_bytes

SWEEP_SHARES = (0.025, 0.05, 0.10, 0.133, 0.25, 0.5, 0.75, 1.0)
"""Of all experts' bytes."""
INTERRUPTED_EXIT_CODE = 130


@dataclass(frozen=True, slots=True)
class Shown:
    """The result of a mode."""

    document: Mapping[str, Any]
    sheets: Sequence[Sheet] = ()
    facts: Sequence[str] = ()
    """About machine, code and containers."""
    lines: Sequence[str] = ()
    points: Sequence[Point] = ()
    exit_code: int = 0


def make_peer(build: Path | None, model: Path | None, driver: Path | None) -> Peer | None:
    """The peer that the options name; None without one. Raises ConfigError if half of it is missing."""
    if build is None:
        return None
    if model is None:
        raise ConfigError("--peer needs --peer-model FILE.gguf")
    peer = Peer(build, model, driver or DRIVER)
    peer.check()
    return peer


class Measuring:
    """Rows: each prompt length under each store or cache."""

    def __init__(
        self,
        container: Path,
        prompts: Sequence[int],
        new: int,
        warm_up: int,
        config: Mapping[str, Any],
        pairs: int,
        note: Note,
    ) -> None:
        if new < 0 or warm_up < 0 or pairs < 1:
            raise ConfigError("--new and --warm-up must not be negative, --pairs at least 1")
        self._plan = Plan(container, prompts[0], new, warm_up, dict(config), pairs)
        self._prompts = prompts
        self._note = note
        self._caches: list[int] = []
        self._plot: Path | None = None
        self._is_sweep = False
        self._trials: dict[str, list[Trial]] = {}

    def set_caches(self, caches: Sequence[int], *, is_sweep: bool, plot: Path | None) -> None:
        """A row for each cache size. A sweep chooses them itself and is drawn."""
        if plot is not None and not is_sweep:
            raise ConfigError("--plot needs --sweep-cache")
        if plot is not None:
            check_plot(plot)
        self._caches, self._is_sweep, self._plot = list(caches), is_sweep, plot
        if is_sweep:
            self._caches = _sweep_sizes(self._plan.container)

    def set_conditions(self, *, limit_bytes: int | None, is_cold: bool) -> None:
        self._plan = replace(self._plan, limit_bytes=limit_bytes, is_cold=is_cold)

    def set_peer(self, build: Path | None, model: Path | None, driver: Path | None) -> None:
        self._plan = replace(self._plan, peer=make_peer(build, model, driver))

    def run(self) -> Shown:
        self._choose_setting()
        rows: dict[str, Row] = {}
        for name, plan in self._plans():
            rows[name] = measure(plan, self._noting(name))
        points = self._points(rows) if self._is_sweep else []
        if self._plot is not None:
            draw(points, "Decode speed over cache size", self._plot)
        return Shown(
            {"rows": rows, "trials": _trials_document(self._trials)},
            [cells_sheet(rows), split_sheet(rows), limits_sheet(rows), trials_sheet(self._trials)],
            [facts_line(next(iter(rows.values())))],
            points=points,
        )

    def _noting(self, name: str) -> Note:
        return lambda _, done, total: self._note(name, done, total)

    def _choose_setting(self) -> None:
        if self._plan.peer is not None:
            setting, trials = search_best(self._plan, "decode" if self._plan.new else "prefill")
            self._plan = replace(self._plan, setting=setting)
            self._trials["peer"] = trials

    def _plans(self) -> list[tuple[str, Plan]]:
        """Decode follows the first prompt length alone."""
        plans = []
        for label, changes in self._stores():
            for number, length in enumerate(self._prompts):
                config = {**self._plan.config, **changes}
                plan = replace(self._plan, prompt=length, config=config)
                if number > 0:
                    plan = replace(plan, new=0, warm_up=0)
                plans.append((f"{label}, prompt {length}", plan))
        return plans

    def _stores(self) -> list[tuple[str, dict[str, Any]]]:
        store = self._plan.config.get("store", "auto")
        wanted: list[tuple[str, dict[str, Any]]] = [
            (f"cache {format_bytes(size)}", {"store": "streaming", "cache_bytes": size})
            for size in self._caches
        ]
        return [(store, {}), *wanted] if store == "resident" or not wanted else wanted

    def _points(self, rows: Mapping[str, Row]) -> list[Point]:
        points = []
        for row in rows.values():
            size, decode = row["cell"]["config"].get("cache_bytes"), row["figures"]["decode"]
            if size is not None and decode is not None:
                floor, perfect = decode["floor_seconds"], decode["perfect_floor_seconds"]
                points.append(Point(size, decode["tokens_per_second"], 1 / floor, 1 / perfect))
        return points


def _sweep_sizes(container: Path) -> list[int]:
    """Ascending, none below what a layer's choice for one token takes."""
    needed, experts = token_bytes(container), read_manifest(container).experts
    every = needed.blob * experts.num_layers * experts.num_experts
    least = needed.blob * max(2, needed.experts_per_token)
    return sorted({max(least, int(every * share)) for share in SWEEP_SHARES})


class Targets:
    """Every target, or some, with what the suite names."""

    def __init__(
        self,
        container: Path,
        suite: Path | None,
        given: Mapping[str, Any],
        only: Sequence[str],
        note: Note,
    ) -> None:
        read = Suite() if suite is None else read_suite(suite)
        self._suite = merge(read, given)
        self._only = only
        self._note = note
        self._container = container
        self._is_sweep = False
        self._earlier = Earlier()
        recipe = read_manifest(container).recipe.replace("-", "_")
        if recipe in ("int8", "int4", "int4_small") and getattr(self._suite, recipe) is None:
            self._suite = merge(self._suite, {recipe: container})

    def set_sweep(self, *, is_sweep: bool) -> None:
        """Whether decode speed over cache size is measured too: of the int4 container if there is one."""
        self._is_sweep = is_sweep

    def go_on_from(self, report: Path | None) -> None:
        """What that report measured is taken over. Raises ConfigError."""
        if report is not None:
            self._earlier = read_report(report)

    def run(self) -> Shown:
        runs = TargetRuns(self._suite, self._note)
        outcomes = run_targets(runs, self._only, self._note, self._earlier.outcomes)
        is_interrupted = any(each.reason == INTERRUPTED for each in outcomes)
        is_sweeping = self._is_sweep and not is_interrupted
        swept = self._sweep() if is_sweeping else Shown({"rows": {}})
        rows = {**self._earlier.rows, **runs.rows, **swept.document["rows"]}
        trials = {**self._earlier.trials, **runs.trials}
        document = {
            "targets": [each.to_dict() for each in outcomes],
            "rows": rows,
            "trials": _trials_document(trials),
        }
        sheets = [
            targets_sheet(outcomes),
            cells_sheet(rows),
            split_sheet(rows),
            limits_sheet(rows),
            trials_sheet(trials),
        ]
        facts = sorted({facts_line(row) for row in rows.values()})
        exit_code = INTERRUPTED_EXIT_CODE if is_interrupted else 0 if all_met(outcomes) else 1
        return Shown(document, sheets, facts, points=swept.points, exit_code=exit_code)

    def _sweep(self) -> Shown:
        suite = self._suite
        sweep = Measuring(
            suite.int4 or self._container,
            [suite.prompt],
            suite.new,
            suite.warm_up,
            {} if suite.threads is None else {"threads": suite.threads},
            suite.pairs,
            self._note,
        )
        sweep.set_caches([], is_sweep=True, plot=None)
        return sweep.run()


def _trials_document(trials: Mapping[str, Sequence[Trial]]) -> dict[str, Any]:
    return {name: [trial.to_dict() for trial in tried] for name, tried in trials.items()}
