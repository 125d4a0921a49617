"""What the kernel refuses to this process: its resource limits (`ulimit`), as far as they bound memory and files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sparseflow.host.mounts import ROOT

_COLUMNS = re.compile(r"\s{2,}")


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Soft limits; None where there is none."""

    address_space_bytes: int | None
    """`ulimit -v`: everything mapped, touched or not."""
    data_bytes: int | None
    """`ulimit -d`: private writable memory."""
    open_files: int | None
    """`ulimit -n`"""
    allocatable_bytes: int | None
    """What the two memory limits leave of what this process has already; None without such a limit."""


def process_limits(root: Path = ROOT) -> ProcessLimits:
    """Reads /proc/self/limits and /proc/self/status below `root`; no limits where they are not there."""
    limits = _soft_limits(root / "proc/self/limits")
    held = read_kilobytes(root / "proc/self/status")
    space, data = limits.get("Max address space"), limits.get("Max data size")
    left = [
        max(0, limit - held.get(name, 0))
        for limit, name in ((space, "VmSize"), (data, "VmData"))
        if limit is not None
    ]
    return ProcessLimits(space, data, limits.get("Max open files"), min(left, default=None))


def read_kilobytes(path: Path) -> dict[str, int]:
    """Bytes of the lines `Name: 123 kB` of a file such as /proc/meminfo; empty if it is absent."""
    fields: dict[str, int] = {}
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return fields
    for line in lines:
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB":
            fields[name] = int(words[0]) * 1024
    return fields


def _soft_limits(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    rows = (_COLUMNS.split(line.strip()) for line in lines)
    return {row[0]: int(row[1]) for row in rows if len(row) >= 3 and row[1].isdigit()}
