"""What tells that memory runs short: use within every limit, stalls, failures and kills. Facts only; engine/pressure.py
judges them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparseflow.host.cgroup import find_groups, read_fields, read_number
from sparseflow.host.limits import read_kilobytes
from sparseflow.host.memory import read_limit, unreclaimable_bytes
from sparseflow.host.mounts import ROOT
from sparseflow.host.process import process_memory


@dataclass(frozen=True, slots=True)
class Stall:
    """The kernel's pressure stall information on memory."""

    some_avg10: float
    """Percent of the last ten seconds in which at least one task stood still for memory."""
    full_avg10: float
    """In which all of them did."""
    some_seconds: float
    """The same as a sum since the beginning; the difference of two readings covers the time between them."""
    full_seconds: float


@dataclass(frozen=True, slots=True)
class MemoryScope:
    """The machine, or a control group with a limit of its own."""

    name: str
    """The group's directory; `machine`."""
    limit_bytes: int
    used_bytes: int
    """What the kernel cannot drop: use less file pages."""
    failures: int
    """How often the limit was hit; file pages were dropped then, or somebody was killed."""
    oom_kills: int
    stall: Stall | None
    """None where the kernel does not tell."""

    @property
    def available_bytes(self) -> int:
        """What could be taken now before somebody is killed."""
        return max(0, self.limit_bytes - self.used_bytes)


@dataclass(frozen=True, slots=True)
class PressureFacts:
    """One reading."""

    scopes: tuple[MemoryScope, ...]
    """All that bind this process: the machine first, then its groups from its own upwards."""
    own_bytes: int
    """Anonymous memory of this process, which is a part of what every scope uses."""

    @property
    def available_bytes(self) -> int:
        return min(scope.available_bytes for scope in self.scopes)


class PressureReader:
    """Finds once which control groups limit this process, so that a reading takes half a millisecond of a core."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._version, groups = find_groups("memory", root)
        self._groups = [group for group in groups if read_limit(group, self._version) is not None]

    def read(self) -> PressureFacts:
        """Reads /proc and the files of these groups, whose limits may have changed."""
        limited = [(group, read_limit(group, self._version)) for group in self._groups]
        scopes = [_machine(self._root)]
        scopes += [_group(group, self._version, limit) for group, limit in limited if limit]
        own = process_memory(self._root / "proc/self/status").anonymous_bytes
        return PressureFacts(tuple(scopes), own)


def read_pressure(root: Path = ROOT) -> PressureFacts:
    """One reading."""
    return PressureReader(root).read()


def read_stall(path: Path) -> Stall | None:
    """A file as /proc/pressure/memory; None if there is none, or if it is not such a file."""
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
        fields = {line[0]: dict(word.split("=") for word in line[1:]) for line in lines}
        some, full = fields["some"], fields["full"]
        averages = float(some["avg10"]), float(full["avg10"])
        return Stall(*averages, int(some["total"]) / 1e6, int(full["total"]) / 1e6)
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _machine(root: Path) -> MemoryScope:
    fields = read_kilobytes(root / "proc/meminfo")
    total = fields.get("MemTotal", 0)
    used = total - fields.get("MemAvailable", total // 2)
    return MemoryScope("machine", total, used, 0, 0, read_stall(root / "proc/pressure/memory"))


def _group(group: Path, version: int, limit: int) -> MemoryScope:
    used = unreclaimable_bytes(group, version)
    if version == 2:
        events = read_fields(group / "memory.events")
        failures, kills = events.get("max", 0), events.get("oom_kill", 0)
        stall = read_stall(group / "memory.pressure")
    else:
        stall = None
        failures = read_number(group / "memory.failcnt") or 0
        kills = read_fields(group / "memory.oom_control").get("oom_kill", 0)
    return MemoryScope(str(group), limit, used, failures, kills, stall)
