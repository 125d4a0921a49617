"""How much memory there is, and how much of it this process may still take: the system's word, every cgroup's, and the
limits of the process itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparseflow.host.cgroup import find_groups, read_fields, read_number
from sparseflow.host.limits import process_limits, read_kilobytes
from sparseflow.host.mounts import ROOT

NO_LIMIT = 1 << 60
"""Version 1 writes a number near 2^63 where there is no limit."""
STRICT_OVERCOMMIT = 2
"""vm.overcommit_memory of a kernel that promises no more than it can keep."""


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Bytes of the machine and of the tightest control group."""

    total_bytes: int
    available_bytes: int
    """What could be taken now without swapping, within every limit."""
    limit_bytes: int | None
    """The lowest limit of this process's control groups, whether it kills (`memory.max`) or slows down (`memory.high`);
    None if there is none.
    """
    swap_bytes: int
    """Of the machine."""
    swap_used_bytes: int = 0
    swap_limit_bytes: int | None = None
    """The lowest bound on swap of this process's control groups."""
    cgroup_version: int = 0
    """Which one limits memory here; 0 without control groups."""
    limit_source: str = ""
    """The file that says `limit_bytes`."""
    commit_left_bytes: int | None = None
    """What a kernel with strict overcommit still promises; None for any other, which promises without counting."""


@dataclass(frozen=True, slots=True)
class _Bound:
    nbytes: int
    source: Path
    left_bytes: int

    @property
    def is_summary(self) -> bool:
        """Whether the source repeats what another group's file may say itself."""
        return self.source.name == "memory.stat"


def memory_facts(root: Path = ROOT) -> MemoryFacts:
    """Reads below `root`: /proc/meminfo, /proc/sys/vm, the files of control groups, limits of this process."""
    fields = read_kilobytes(root / "proc/meminfo")
    total, swap = fields.get("MemTotal", 0), fields.get("SwapTotal", 0)
    version, groups = find_groups("memory", root)
    bounds = [bound for group in groups for bound in _bounds(group, version)]
    tightest = min(bounds, key=lambda bound: (bound.nbytes, bound.is_summary), default=None)
    commit = _commit_left(fields, root)
    left = [commit, process_limits(root).allocatable_bytes, *(bound.left_bytes for bound in bounds)]
    free = fields.get("MemAvailable", total // 2)
    return MemoryFacts(
        total_bytes=total,
        available_bytes=min([free, *(nbytes for nbytes in left if nbytes is not None)]),
        limit_bytes=tightest.nbytes if tightest else None,
        swap_bytes=swap,
        swap_used_bytes=max(0, swap - fields.get("SwapFree", swap)),
        swap_limit_bytes=_swap_limit(groups, version),
        cgroup_version=version,
        limit_source=f"/{tightest.source.relative_to(root)}" if tightest else "",
        commit_left_bytes=commit,
    )


def available_memory_bytes(root: Path = ROOT) -> int:
    """What could be taken now without swapping, within every limit."""
    return memory_facts(root).available_bytes


def read_limit(group: Path, version: int) -> int | None:
    """The lowest limit that a group's files state; None if there is none."""
    return min((nbytes for nbytes, _ in _limits(group, version)), default=None)


def _bounds(group: Path, version: int) -> list[_Bound]:
    used = unreclaimable_bytes(group, version)
    return [
        _Bound(nbytes, source, max(0, nbytes - used)) for nbytes, source in _limits(group, version)
    ]


def _limits(group: Path, version: int) -> list[tuple[int, Path]]:
    """The limits that a group's files state, and which file does."""
    found = []
    for name in ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",):
        found.append((read_number(group / name), group / name))
    if version == 1:
        # Names the lowest limit of all ancestors, also of those above a container's mount.
        stat = group / "memory.stat"
        found.append((read_fields(stat).get("hierarchical_memory_limit"), stat))
    return [
        (nbytes, source)
        for nbytes, source in found
        if nbytes is not None and 0 <= nbytes < NO_LIMIT
    ]


def _swap_limit(groups: list[Path], version: int) -> int | None:
    """Version 1 bounds the sum of memory and swap."""
    limits = []
    for group in groups:
        if version == 2:
            limits.append(read_number(group / "memory.swap.max"))
            continue
        both = read_number(group / "memory.memsw.limit_in_bytes")
        memory = read_number(group / "memory.limit_in_bytes")
        if both is not None and memory is not None and both < NO_LIMIT:
            limits.append(max(0, both - memory))
    return min((limit for limit in limits if limit is not None), default=None)


def unreclaimable_bytes(group: Path, version: int) -> int:
    """A group's usage less the file pages that the kernel drops when memory is wanted."""
    usage = (
        read_number(group / ("memory.current" if version == 2 else "memory.usage_in_bytes")) or 0
    )
    prefix = "" if version == 2 else "total_"
    stat = read_fields(group / "memory.stat")
    files = stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)
    return max(0, usage - files)


def _commit_left(meminfo: dict[str, int], root: Path) -> int | None:
    if read_number(root / "proc/sys/vm/overcommit_memory") != STRICT_OVERCOMMIT:
        return None
    return max(0, meminfo.get("CommitLimit", 0) - meminfo.get("Committed_AS", 0))
