"""Cold means proven cold: pages of the files are dropped and seen to be gone, and the bytes that a child then read are
counted by the kernel.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparseflow.host.process import page_cache_bytes

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
MOST_CACHED = 0.01
"""Share of the files that may still be cached after dropping."""
LEAST_READ = 0.98
"""Share of the bytes that had to be read which the kernel must have counted."""
MOST_SPEED = 1.15
"""A cold read faster than the disk probe by more than this was not cold."""


def drop_pages(paths: Sequence[Path], drop_caches: Path = DROP_CACHES) -> float:
    """Drops the files' pages, by the kernel's global switch if advice is not enough; returns the share still cached."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)  # dirty pages stay
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    if cached_share(paths) > MOST_CACHED:
        with contextlib.suppress(OSError):  # only root may
            drop_caches.write_text("1", encoding="ascii")
    return cached_share(paths)


def cached_share(paths: Sequence[Path]) -> float:
    """Share of the files' bytes that the page cache holds; 0 for no bytes."""
    total = sum(path.stat().st_size for path in paths)
    return page_cache_bytes(paths) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class ColdProof:
    """What speaks for a run having been cold."""

    cached_share: float
    """Of the files, before the run."""
    needed_bytes: int
    """That the run had to read from storage."""
    read_bytes: int | None
    """That the kernel counted; None without a counter."""
    seconds: float
    """In which they were read."""
    disk_bytes: float
    """A second, by the probe."""

    @property
    def doubt(self) -> str:
        """Why the run cannot be called cold; empty if it can."""
        if self.cached_share > MOST_CACHED:
            return f"{self.cached_share:.0%} of the files stayed in the page cache"
        if self.read_bytes is None:
            return "this system has no counter of physical reads"
        if self.read_bytes < LEAST_READ * self.needed_bytes:
            return f"only {self.read_bytes} of {self.needed_bytes} bytes came from the disk"
        if self.disk_bytes and self.needed_bytes > MOST_SPEED * self.disk_bytes * self.seconds:
            return "it was faster than the disk probe"
        return ""


def container_files(container: Path) -> list[Path]:
    """Every file below a container's directory."""
    return sorted(path for path in container.rglob("*") if path.is_file())
