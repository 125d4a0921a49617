"""A memory control group of its own for a child and what it reads: version 1 and 2, made and removed here.

The page cache of files that the child is the first to touch is charged to the group, as on a machine with that much
memory; files that are already cached are not, which is why `cold.drop_pages` comes first.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sparseflow.errors import UnsupportedError
from sparseflow.host.cgroup import find_groups, read_fields, read_number
from sparseflow.host.mounts import ROOT

REMOVE_SECONDS = 10.0
_number = itertools.count()


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """Bytes charged to a group now, and what went wrong in it so far."""

    anonymous_bytes: int
    file_bytes: int
    peak_bytes: int
    """Of both together, as the kernel keeps it."""
    oom_kills: int


class MemoryGroup:
    """Bounds the memory of the processes that enter it. A context manager; leaving it ends what is left inside."""

    def __init__(self, limit_bytes: int, root: Path = ROOT) -> None:
        """Raises UnsupportedError, saying why, if no group with a memory limit can be made here."""
        self.limit_bytes = limit_bytes
        self.version, ancestors = find_groups("memory", root)
        if not ancestors:
            raise UnsupportedError("no memory limit: this system shows no memory control group")
        self.path = _make(ancestors, self.version, limit_bytes)

    @property
    def procs(self) -> Path:
        """Where a process writes its id to enter."""
        return self.path / "cgroup.procs"

    def memory(self) -> GroupMemory:
        stat = read_fields(self.path / "memory.stat")
        if self.version == 2:
            return GroupMemory(
                stat.get("anon", 0),
                stat.get("file", 0),
                read_number(self.path / "memory.peak") or 0,
                read_fields(self.path / "memory.events").get("oom_kill", 0),
            )
        return GroupMemory(
            stat.get("rss", 0),
            stat.get("cache", 0),
            read_number(self.path / "memory.max_usage_in_bytes") or 0,
            read_fields(self.path / "memory.oom_control").get("oom_kill", 0),
        )

    def remove(self) -> None:
        """Ends the processes inside, uncharges their pages and removes the group. Raises OSError if it stays busy."""
        end = time.monotonic() + REMOVE_SECONDS
        while True:
            self._end_processes()
            force_empty = self.path / "memory.force_empty"
            if force_empty.exists():  # version 1
                with contextlib.suppress(OSError):
                    force_empty.write_text("0", encoding="ascii")
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
            else:
                return

    def _end_processes(self) -> None:
        try:
            pids = [int(line) for line in self.procs.read_text(encoding="ascii").split()]
        except OSError:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()


def _make(ancestors: list[Path], version: int, limit_bytes: int) -> Path:
    """A new group below the nearest ancestor that allows one, with its limits written."""
    reason = "no ancestor group"
    for parent in ancestors:
        path = parent / f"sparseflow-bench-{os.getpid()}-{next(_number)}"
        try:
            if version == 2:
                _hand_down(parent)
            path.mkdir()
        except OSError as error:
            reason = f"{path}: {error.strerror}"
            continue
        try:
            _write_limits(path, version, limit_bytes)
        except OSError as error:
            reason = f"{error.filename or path}: {error.strerror}"
            with contextlib.suppress(OSError):
                path.rmdir()
            continue
        return path
    raise UnsupportedError(f"no memory limit: a control group cannot be made ({reason})")


def _hand_down(parent: Path) -> None:
    """Gives the children of a version 2 group the memory controller."""
    control = parent / "cgroup.subtree_control"
    if "memory" not in control.read_text(encoding="ascii").split():
        control.write_text("+memory", encoding="ascii")


def _write_limits(path: Path, version: int, limit_bytes: int) -> None:
    limit = path / ("memory.max" if version == 2 else "memory.limit_in_bytes")
    limit.write_text(str(limit_bytes), encoding="ascii")
    # Swapping would hide what does not fit; groups without these files have no swap to forbid.
    no_swap = path / ("memory.swap.max" if version == 2 else "memory.swappiness")
    if no_swap.exists():
        no_swap.write_text("0", encoding="ascii")
