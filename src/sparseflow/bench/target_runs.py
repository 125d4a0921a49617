"""Runs what the targets need, each measurement once, and remembers rows and trials for the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sparseflow.bench.measure import Plan, Row, measure
from sparseflow.bench.pairs import Note
from sparseflow.bench.peer import DRIVER, Peer, Setting, Trial
from sparseflow.bench.searches import Tried, search_best
from sparseflow.bench.suite import Suite
from sparseflow.config import EngineConfig
from sparseflow.container.manifest import read_manifest
from sparseflow.errors import ConfigError
from sparseflow.host.cpu import default_threads

GIB = 1 << 30
STREAMING_SHARE = 0.25
"""Of all experts' bytes that the cache holds where a container streams without a limit."""
MODELS = {"int8": "peer_q8", "int4": "peer_q4", "int4_small": "peer_q4", "full": "peer_full"}
"""Container of a suite -> its peer's model."""


class TargetRuns:
    """Measures on demand; asking again costs nothing."""

    def __init__(self, suite: Suite, note: Note | None = None) -> None:
        self.suite = suite
        self.rows: dict[str, Row] = {}
        """By a name that says what was measured."""
        self.trials: dict[str, list[Trial]] = {}
        """Of the searches for the peer's best setting."""
        self._note = note
        self._settings: dict[str, Setting] = {}
        self._tried: dict[tuple[Path, Path, int | None], Tried] = {}

    def container(self, key: str) -> Path:
        """Raises ConfigError if the suite does not name it."""
        path: Path | None = getattr(self.suite, key)
        if path is None:
            raise ConfigError(f"no container: --{key.replace('_', '-')}")
        return path

    def peer(self, key: str, isa: str = "auto") -> Peer:
        """Raises ConfigError if build, model or driver is missing."""
        name = "peer" if isa == "auto" else f"peer_{isa}"
        build, model = getattr(self.suite, name), getattr(self.suite, MODELS[key])
        for option, value in ((name, build), (MODELS[key], model)):
            if value is None:
                raise ConfigError(f"no peer: --{option.replace('_', '-')}")
        peer = Peer(build, model, self.suite.peer_driver or DRIVER)
        peer.check()
        return peer

    def row(self, name: str, plan: Plan) -> Row:
        """The measurement of that name; made if it was not yet."""
        if name not in self.rows:
            if self._note is not None:
                self._note(name, 0, plan.pairs)
            self.rows[name] = measure(plan, self._noting(name))
        return self.rows[name]

    def resident(
        self, key: str, *, threads: int | None = None, isa: str = "auto", metric: str = "decode"
    ) -> Row:
        """Prompt and steps with all experts in memory, beside the peer at its best by `metric`.

        Without a peer in the suite, or with a thread count of its own, alone.
        """
        container, count = self.container(key), threads or self.threads
        config = {"store": "resident", "threads": count, "isa": isa}
        name = f"{key} resident, {count} threads, {isa}"
        plan = self._plan(container, config)
        try:
            peer = None if threads else self.peer(key, isa)
        except ConfigError:
            peer = None
        if peer is None:
            return self.row(name, plan)
        plan = replace(plan, peer=peer)
        setting = self._best(f"{key} resident, {isa}, {metric}", plan, metric)
        return self.row(f"{name}, {setting.label()}", replace(plan, setting=setting))

    def streaming(self, key: str, *, prompt: int | None = None, pairs: int | None = None) -> Row:
        """The same with a cache of STREAMING_SHARE of the experts; counts what the prompt touches."""
        container = self.container(key)
        nbytes = sum(
            record.nbytes
            for path, record in read_manifest(container).files.items()
            if path.endswith(".sfi")
        )
        length = prompt or self.suite.prompt
        config = {
            "store": "streaming",
            "cache_bytes": int(nbytes * STREAMING_SHARE),
            "threads": self.threads,
        }
        plan = Plan(
            container,
            prompt=length,
            new=0 if prompt else self.suite.new,
            warm_up=0 if prompt else self.suite.warm_up,
            config=config,
            pairs=pairs or self.suite.pairs,
            counts_routes=True,
        )
        return self.row(f"{key} streaming, {STREAMING_SHARE:.0%} cached, prompt {length}", plan)

    def limited(self, gib: int, *, own_read_ahead: bool = False) -> Row:
        """The full model beside its peer under a memory limit, steady state."""
        container, peer = self.container("full"), self.peer("full")
        plan = self._plan(container, {"threads": self.threads}, gib * GIB)
        plan = replace(plan, peer=peer)
        setting = self._best(f"full under {gib} GiB", plan, "decode")
        if own_read_ahead:
            setting = replace(setting, read_ahead_kib=None)
        name = f"full under {gib} GiB, {setting.label()}"
        return self.row(name, replace(plan, setting=setting))

    def cold_start(self, key: str) -> Row:
        """From nothing in memory to the first token after a short prompt."""
        config = {"threads": self.threads}
        plan = Plan(self.container(key), 32, 0, 0, config, self.suite.pairs, is_cold=True)
        return self.row(f"{key} cold start", plan)

    @property
    def threads(self) -> int:
        return self.suite.threads or default_threads()

    def _best(self, name: str, plan: Plan, metric: str) -> Setting:
        """Of the plan's peer; searched once for each name."""
        if name not in self._settings:
            if self._note is not None:
                self._note(f"search: {name}", 0, 1)
            assert plan.peer is not None
            conditions = (plan.peer.build, plan.peer.model, plan.limit_bytes)
            tried = self._tried.setdefault(conditions, {})
            self._settings[name], self.trials[name] = search_best(
                plan, metric, self.suite.search_new, tried
            )
        return self._settings[name]

    def _plan(
        self, container: Path, config: dict[str, Any], limit_bytes: int | None = None
    ) -> Plan:
        EngineConfig(**config)  # refused here, not in the child
        suite = self.suite
        return Plan(
            container, suite.prompt, suite.new, suite.warm_up, config, suite.pairs, limit_bytes
        )

    def _noting(self, name: str) -> Note | None:
        note = self._note
        if note is None:
            return None
        return lambda _, done, total: note(name, done, total)
