"""What the kernel tells about a running program: physical reads, CPU time, memory by kind, its group, swapping."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from sparseflow.bench.limits import MemoryGroup
from sparseflow.host.cgroup import read_fields
from sparseflow.host.process import process_memory

_VMSTAT = Path("/proc/vmstat")


class Watch:
    """Samples a process from outside. The last sample before it ends is the one that counts."""

    interval = 0.25
    """Seconds between samples; a sample takes some 0.3 ms of a core that the program could use."""

    def __init__(self, pid: int, group: MemoryGroup | None) -> None:
        self._proc = Path("/proc") / str(pid)
        self._group = group
        self._swap_before = _swap_counters()
        self._oom_before = group.memory().oom_kills if group else 0
        self.read_bytes: int | None = None
        self.oom_kills = 0
        self._cpu_seconds = 0.0
        self._anonymous_peak = 0
        self._file_peak = 0
        self._peak = 0
        self._group_peak = 0
        self._last: dict[str, int] = {}

    def sample(self) -> None:
        """Reads what can be read; a process that has just gone keeps its last values."""
        with contextlib.suppress(OSError, IndexError):
            memory = process_memory(self._proc / "status")
            self._anonymous_peak = max(self._anonymous_peak, memory.anonymous_bytes)
            self._file_peak = max(self._file_peak, memory.file_bytes)
            self._peak = max(self._peak, memory.peak_bytes)
            family = [self._proc, *_children(self._proc)]
            self._cpu_seconds = max(self._cpu_seconds, sum(map(_cpu_seconds, family)))
            counted = [colon_fields(process / "io").get("read_bytes") for process in family]
            self.read_bytes = max(self.read_bytes or 0, sum(count or 0 for count in counted))
        if self._group is not None:
            self._sample_group(self._group)

    def to_dict(self) -> dict[str, Any]:
        swap = _swap_counters()
        return {
            "read_bytes": self.read_bytes,
            "cpu_seconds": self._cpu_seconds,
            "anonymous_peak_bytes": self._anonymous_peak,
            "file_peak_bytes": self._file_peak,
            "peak_bytes": self._peak,
            "group_peak_bytes": self._group_peak,
            "limit_bytes": self._group.limit_bytes if self._group else None,
            "oom_kills": self.oom_kills,
            "pswpout": swap["pswpout"] - self._swap_before["pswpout"],
            "pswpin": swap["pswpin"] - self._swap_before["pswpin"],
            "last": self._last,
        }

    def look_closely(self) -> None:
        """What the kernel counts at this moment, in more detail than is worth a sample: kept as `last`."""
        with contextlib.suppress(OSError):
            rollup = colon_fields(self._proc / "smaps_rollup")
            anonymous = 1024 * rollup.get("Anonymous", 0)
            self._last = {
                "anonymous_bytes": anonymous,
                "file_bytes": 1024 * rollup.get("Rss", 0) - anonymous,
            }
        if self._group is not None:
            memory = self._group.memory()
            self._last["group_anonymous_bytes"] = memory.anonymous_bytes
            self._last["group_file_bytes"] = memory.file_bytes

    def _sample_group(self, group: MemoryGroup) -> None:
        memory = group.memory()
        self.oom_kills = memory.oom_kills - self._oom_before
        self._anonymous_peak = max(self._anonymous_peak, memory.anonymous_bytes)
        self._file_peak = max(self._file_peak, memory.file_bytes)
        self._group_peak = memory.peak_bytes


def _children(process: Path) -> list[Path]:
    """Of a program that runs another: its children, not theirs; none where the system does not tell."""
    try:
        pids = (process / "task" / process.name / "children").read_text(encoding="ascii").split()
    except OSError:
        return []
    return [process.parent / pid for pid in pids]


def _cpu_seconds(process: Path) -> float:
    """User and system time so far, of all its threads."""
    stat = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def _swap_counters() -> dict[str, int]:
    fields = read_fields(_VMSTAT)
    return {name: fields.get(name, 0) for name in ("pswpout", "pswpin")}


def colon_fields(path: Path) -> dict[str, int]:
    """Lines `name: number`, with or without a unit behind it."""
    fields = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, colon, value = line.partition(":")
        words = value.split()
        if colon and words and words[0].isdigit():
            fields[name] = int(words[0])
    return fields
