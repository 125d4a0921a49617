"""The measured process: `python -m sparseflow.bench.child CELL.json REPORT.json`.

Loads the engine, computes the prompt, then token after token. It then says `done` and waits, so that its parent can
read the kernel's counters before they vanish with it, and writes what each part took. Clocks are CLOCK_MONOTONIC, which
the parent shares.
"""

from __future__ import annotations

import time

STARTED = time.monotonic()

import hashlib  # noqa: E402 - what is imported is timed
import json  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402
from functools import partial  # noqa: E402
from itertools import pairwise  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

from sparseflow.bench.cold import container_files  # noqa: E402
from sparseflow.bench.split import split_step, take_native_times  # noqa: E402
from sparseflow.bench.watch import colon_fields  # noqa: E402
from sparseflow.config import EngineConfig, SamplingParams  # noqa: E402
from sparseflow.engine.engine import Engine  # noqa: E402
from sparseflow.engine.token import Token  # noqa: E402
from sparseflow.errors import SparseFlowError  # noqa: E402
from sparseflow.experts.streaming import StreamingStore  # noqa: E402
from sparseflow.host.process import page_cache_bytes, process_memory  # noqa: E402
from sparseflow.planning.budget import settle  # noqa: E402

IMPORTED = time.monotonic()
COUNTERS = (
    "hits",
    "misses",
    "evictions",
    "reads",
    "failed_reads",
    "bytes_read",
    "read_wait_seconds",
    "read_busy_seconds",
    "read_flight_seconds",
    "wait_cpu_seconds",
)
"""Of ExpertStats, all growing; what an older store does not count is 0."""


@dataclass(frozen=True, slots=True)
class Reading:
    """All counters at one moment."""

    wall: float
    cpu: float
    experts: dict[str, Any]
    layer_reads: list[int]


class Meter:
    """Reads the engine's counters; differences of two readings are what a phase cost."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last = self.read()

    def read(self) -> Reading:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Reading(
            wall=time.perf_counter(),
            cpu=usage.ru_utime + usage.ru_stime,
            experts=dict.fromkeys(COUNTERS, 0) | self._engine.stats().experts.to_dict(),
            layer_reads=self.layer_reads(),
        )

    def layer_reads(self) -> list[int]:
        """Reads of each layer so far; empty if the experts are resident."""
        store = self._engine.store
        return list(store.source.layer_reads) if isinstance(store, StreamingStore) else []

    def begin(self) -> None:
        """A phase starts now."""
        take_native_times(self._engine.runtime)
        self._last = self.read()

    def end(self) -> dict[str, Any]:
        """What has passed since `begin`: wall and CPU seconds, the expert store's counters, the split."""
        now, last = self.read(), self._last
        native = take_native_times(self._engine.runtime)
        wall = now.wall - last.wall
        experts = {name: now.experts[name] - last.experts[name] for name in COUNTERS}
        return {
            "wall_seconds": wall,
            "cpu_seconds": now.cpu - last.cpu,
            "experts": experts,
            "layer_reads": [b - a for a, b in zip(last.layer_reads, now.layer_reads, strict=True)],
            "native_seconds": native,
            "split": split_step(native, wall, experts["read_wait_seconds"]),
        }


class Routes:
    """Which experts of each layer were chosen, while it listens."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._chosen: dict[int, list[np.ndarray[Any, Any]]] = {}

    def __enter__(self) -> Routes:
        self._engine.store.observer = lambda layer, ids: self._chosen.setdefault(layer, []).append(
            ids
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.store.observer = None

    def touched(self) -> list[int]:
        """Distinct experts of each layer."""
        return [
            len(np.unique(np.concatenate([ids.ravel() for ids in self._chosen[layer]])))
            for layer in sorted(self._chosen)
        ]


def measure(cell: dict[str, Any], engine: Engine, chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Prompt, warm-up, measured tokens. `chunks` is filled by the engine's progress."""
    prompt, warm_up, new = cell["prompt"], cell["warm_up"], cell["new"]
    params = SamplingParams(max_new_tokens=1 + warm_up + new, temperature=0, ignore_eos=True)
    meter = Meter(engine)
    chunks.clear()
    meter.begin()
    stream = engine.generate(prompt, params, hash_logits=cell["hashes_logits"])
    steps_sha256 = hashlib.sha256()
    tokens = map(partial(_follow, steps_sha256), stream)
    with Routes(engine) as routes:
        ids = [next(tokens)]
        first_token = time.monotonic()
        prefill = meter.end()
        prefill["touched"] = routes.touched() if cell["counts_routes"] else []
    prefill |= {"tokens": len(prompt), "chunks": list(chunks)}
    prefill["bytes_since_start"] = engine.stats().experts.bytes_read
    ids += [next(tokens) for _ in range(warm_up)]
    meter.begin()
    seconds, reads = [], [meter.layer_reads()]
    for _ in range(new):
        start = time.perf_counter()
        ids.append(next(tokens))
        seconds.append(time.perf_counter() - start)
        reads.append(meter.layer_reads())
    decode = meter.end()
    stream.close()
    steps = [[b - a for a, b in zip(x, y, strict=True)] for x, y in pairwise(reads)]
    decode |= {"tokens": new, "token_seconds": seconds, "step_reads": steps}
    return {
        "ids": ids,
        "steps_sha256": steps_sha256.hexdigest(),
        "prefill": prefill,
        "decode": decode,
        "first_token": first_token,
    }


def _follow(steps: Any, token: Token) -> int:
    """Adds a step to the hash of all: its id, and its logits where they were hashed."""
    steps.update(f"{token.id} {token.logits_sha256}\n".encode())
    return token.id


def run(cell: dict[str, Any], on_measured: Callable[[], None]) -> dict[str, Any]:
    """The report of one cell, as plain values. on_measured: called while everything is still in memory."""
    container = Path(cell["container"])
    config, budget = settle(container, EngineConfig(**cell["config"]))
    chunks: list[dict[str, Any]] = []
    opened: list[Engine] = []

    def note(what: str, done: int, _: int) -> None:
        if what == "prefill" and opened:
            chunks.append({"tokens": done, "layer_reads": Meter(opened[0]).layer_reads()})

    with Engine.open(container, config, progress=note) as engine:
        opened.append(engine)
        at_open = time.monotonic()
        report = measure(cell, engine, chunks)
        first_token = report.pop("first_token")
        stats = engine.stats()
        huge_bytes = _anonymous_huge_bytes()
        own = {
            **asdict(process_memory()),
            "page_cache_bytes": page_cache_bytes(container_files(container)),
        }
        on_measured()
    return {
        **report,
        "anon_huge_bytes": huge_bytes,
        "clock": {
            "started": STARTED,
            "imported": IMPORTED,
            "opened": at_open,
            "first_token": first_token,
        },
        "budget": budget.to_dict(),
        "isa": stats.isa,
        "threads": stats.threads,
        "store": stats.store,
        "policy": config.policy,
        "queue_depth": config.queue_depth,
        "prefill_chunk": config.prefill_chunk,
        "io": stats.experts.io,
        "recipe": stats.recipe,
        "dense_bytes": stats.memory.dense_bytes,
        "experts": stats.experts.to_dict(),
        "leases": stats.active_leases,
        "memory": {**own, "by_use": stats.to_dict()["memory"]},
    }


def _anonymous_huge_bytes() -> int:
    """Of this process, now."""
    try:
        return colon_fields(Path("/proc/self/smaps_rollup")).get("AnonHugePages", 0) * 1024
    except OSError:
        return 0


def main(cell_path: str, report_path: str) -> int:
    """Returns an exit code; an error's message is the last line on stderr."""
    try:
        report = run(json.loads(Path(cell_path).read_text(encoding="utf-8")), _say_done)
    except SparseFlowError as error:
        sys.stderr.write(f"sparseflow: {' '.join(str(error).split())}\n")
        return error.exit_code
    Path(report_path).write_text(json.dumps(report), encoding="utf-8")
    return 0


def _say_done() -> None:
    """Lets the parent read the kernel's counters, and waits until it has."""
    sys.stdout.write("done\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
