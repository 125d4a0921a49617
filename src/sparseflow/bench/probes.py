"""What the machine gives at this moment: memory read speed, disk read speed, int8 peak.

A shared machine changes from hour to hour, so probes run before and after every pair of runs, and their mean is the
limit that the pair is held against.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparseflow.bench.statistics import moved
from sparseflow.native import _ext
from sparseflow.planning.speeds import DISK_BYTES, expert_read_speed, int8_rate, memory_speed

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
    disk, blob = 0.0, 0
    if plan.container is not None:
        disk, blob = expert_read_speed(plan.container, plan.queue_depth, plan.io, plan.disk_bytes)
    return Probes(
        read_bytes=memory_speed(runtime, "read"),
        dot_bytes=memory_speed(runtime, "dot"),
        int8_macs=int8_rate(runtime),
        disk_bytes=disk,
        queue_depth=plan.queue_depth if plan.container is not None else 0,
        blob_bytes=blob,
    )


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
