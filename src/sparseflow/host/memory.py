"""How much memory there is, and how much of it this process may still take: the system's word and every cgroup's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparseflow.host.cgroup import ROOT, find_groups, read_fields, read_number

NO_LIMIT = 1 << 60
"""Version 1 writes a number near 2^63 where there is no limit."""


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Bytes of the machine and of the tightest control group."""

    total_bytes: int
    available_bytes: int
    """What could be taken now without swapping, within every limit."""
    limit_bytes: int | None
    """The lowest limit of this process's control groups; None if there is none."""
    swap_bytes: int


def memory_facts(root: Path = ROOT) -> MemoryFacts:
    """Reads /proc/meminfo and the cgroup files below `root`."""
    fields = read_meminfo(root)
    total = fields.get("MemTotal", 0)
    available, limit = fields.get("MemAvailable", total // 2), None
    version, groups = find_groups("memory", root)
    for group in groups:
        bound = read_limit(group, version)
        if bound is None:
            continue
        limit = bound if limit is None else min(limit, bound)
        available = min(available, max(0, bound - unreclaimable_bytes(group, version)))
    return MemoryFacts(total, available, limit, fields.get("SwapTotal", 0))


def available_memory_bytes(root: Path = ROOT) -> int:
    """What could be taken now without swapping, within every limit."""
    return memory_facts(root).available_bytes


def read_limit(group: Path, version: int) -> int | None:
    """A group's own limit in bytes; None if it has none."""
    limit = read_number(group / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
    return None if limit is None or limit >= NO_LIMIT else limit


def unreclaimable_bytes(group: Path, version: int) -> int:
    """A group's usage less the file pages that the kernel drops when memory is wanted."""
    usage = (
        read_number(group / ("memory.current" if version == 2 else "memory.usage_in_bytes")) or 0
    )
    prefix = "" if version == 2 else "total_"
    stat = read_fields(group / "memory.stat")
    files = stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)
    return max(0, usage - files)


def read_meminfo(root: Path = ROOT) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    fields = {}
    for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB":
            fields[name] = int(words[0]) * 1024
    return fields
