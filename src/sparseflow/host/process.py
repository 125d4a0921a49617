"""Memory of this process by kind, and how much of some files the kernel's page cache holds."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes in memory now, by kind; the page cache belongs to the kernel and is none of them."""

    anonymous_bytes: int
    """Heap, stacks, arenas: what nobody can take away without swap."""
    file_bytes: int
    """Mapped files: programs and libraries."""
    peak_bytes: int
    """The largest sum of both so far."""


def process_memory(status: Path = STATUS) -> ProcessMemory:
    """From /proc/self/status; zeros for a line that the system does not show."""
    fields = {}
    for line in status.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            fields[name] = int(value[:-3]) * 1024
    return ProcessMemory(
        anonymous_bytes=fields.get("RssAnon", 0) + fields.get("RssShmem", 0),
        file_bytes=fields.get("RssFile", 0),
        peak_bytes=fields.get("VmHWM", 0),
    )


def page_cache_bytes(paths: Iterable[Path]) -> int:
    """Bytes of these files that the page cache holds; files that cannot be looked at count as zero."""
    return sum(_cached_bytes(path) for path in paths)


def _cached_bytes(path: Path) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        size = path.stat().st_size
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        if size == 0:
            return 0
        # A private writable mapping, because ctypes takes the address of nothing else; no page of it is touched.
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapping:
            resident = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
            window = ctypes.c_char.from_buffer(mapping)
            address = ctypes.c_void_p(ctypes.addressof(window))
            failed = libc.mincore(address, ctypes.c_size_t(size), resident)
            del window
            return 0 if failed else min(size, sum(page & 1 for page in resident) * mmap.PAGESIZE)
    finally:
        os.close(descriptor)
