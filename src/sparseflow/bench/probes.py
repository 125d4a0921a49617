"""What the machine gives at this moment: memory read speed, disk read speed, int8 peak.

A shared machine changes from hour to hour, so probes run before and after every pair of runs, and their mean is the
limit that the pair is held against.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparseflow.bench.statistics import median, moved
from sparseflow.container.reader import Container
from sparseflow.native import _ext

MEMORY_BYTES = 256 << 20
"""Several times the largest cache; small enough to take beside a model."""
MEMORY_PASSES = 15
DISK_BYTES = 768 << 20
INT8_SECONDS = 0.1
STEADY = 0.10
"""A probe that moves by more than this share says that the machine changed."""


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What a pair of runs needs probed, under its own conditions."""

    threads: int
    isa: str = "auto"
    container: Path | None = None
    """Whose expert files the disk probe reads; None: no disk probe."""
    queue_depth: int = 8
    io: str = "auto"
    """The read engine, as EngineConfig names it."""
    disk_bytes: int = DISK_BYTES


@dataclass(frozen=True, slots=True)
class Probes:
    """Speeds a second. Zero: not probed."""

    read_bytes: float
    """Memory, wide loads, all threads: the median pass."""
    dot_bytes: float
    """Memory, every byte multiplied and added up."""
    int8_macs: float
    disk_bytes: float = 0.0
    queue_depth: int = 0
    blob_bytes: int = 0
    """Of one read of the disk probe."""

    @property
    def memory_bytes(self) -> float:
        """The better of both loops: what a perfect engine could read."""
        return max(self.read_bytes, self.dot_bytes)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "memory_bytes": self.memory_bytes}


def run_probes(plan: ProbePlan) -> Probes:
    """Takes about half a second, and as long as the disk needs for `disk_bytes`.

    Raises StorageError if a file cannot be read.
    """
    runtime = _ext.Runtime(plan.isa, plan.threads)
    disk, blob = (0.0, 0) if plan.container is None else probe_disk(plan)
    return Probes(
        read_bytes=_memory_speed(runtime, "read"),
        dot_bytes=_memory_speed(runtime, "dot"),
        int8_macs=_ext.measure_int8_rate(runtime, INT8_SECONDS),
        disk_bytes=disk,
        queue_depth=plan.queue_depth if plan.container is not None else 0,
        blob_bytes=blob,
    )


def probe_disk(plan: ProbePlan) -> tuple[float, int]:
    """(bytes a second, bytes of one read): whole experts at random, past the page cache, by the engine's own reader."""
    assert plan.container is not None
    with Container.open(plan.container) as container:
        layouts, paths = container.layouts, container.expert_files
    blob = layouts[0].blob_bytes
    every = [
        (file, layout.blob_offset(expert))
        for file, layout in enumerate(layouts)
        for expert in range(layout.num_experts)
    ]
    count = max(1, min(len(every), plan.disk_bytes // blob))
    chosen = random.Random(0).sample(every, count)
    engine = _ext.create_read_engine(plan.io, plan.queue_depth, True)
    seconds = _ext.time_reads(engine, [str(path) for path in paths], chosen, blob)
    return count * blob / seconds, blob


def mean(before: Probes, after: Probes) -> Probes:
    """The limit of the runs between two probes."""
    return Probes(
        read_bytes=(before.read_bytes + after.read_bytes) / 2,
        dot_bytes=(before.dot_bytes + after.dot_bytes) / 2,
        int8_macs=(before.int8_macs + after.int8_macs) / 2,
        disk_bytes=(before.disk_bytes + after.disk_bytes) / 2,
        queue_depth=before.queue_depth,
        blob_bytes=before.blob_bytes,
    )


def largest_move(before: Probes, after: Probes) -> float:
    """The relative change of the probe that moved most: memory, and disk where it was probed."""
    moves = [moved(before.memory_bytes, after.memory_bytes)]
    if before.disk_bytes and after.disk_bytes:
        moves.append(moved(before.disk_bytes, after.disk_bytes))
    return max(moves)


def _memory_speed(runtime: _ext.Runtime, loop: str) -> float:
    seconds = _ext.time_memory_passes(runtime, MEMORY_BYTES, loop, MEMORY_PASSES)
    return MEMORY_BYTES / median(seconds[1:])
