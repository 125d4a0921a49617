"""The storage below a path: filesystem, device, room, and whether reads past the page cache work."""

from __future__ import annotations

import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path

from sparseflow.errors import StorageError

ROOT = Path("/")
DIRECT_ALIGNMENT = 4096
"""Bytes to which the native reader aligns offsets, lengths and buffers."""

_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """Of the filesystem that holds a path."""

    filesystem: str
    """Type as the kernel names it: `ext4`, `xfs`, `9p`; empty if not found."""
    device: str
    mount_point: Path
    total_bytes: int
    free_bytes: int
    """For this user."""


def disk_facts(path: Path, root: Path = ROOT) -> DiskFacts:
    """Reads /proc/self/mountinfo below `root`. Raises StorageError if there is no such path."""
    try:
        resolved = path.resolve(strict=True)
        sizes = os.statvfs(resolved)
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror}", path=str(path), errno=error.errno
        ) from error
    mount_point, filesystem, device = _find_mount(resolved, root)
    unit = sizes.f_frsize
    return DiskFacts(filesystem, device, mount_point, sizes.f_blocks * unit, sizes.f_bavail * unit)


def reads_direct(path: Path) -> bool:
    """Whether the first 4 KiB of a file can be read with O_DIRECT. Raises StorageError if it cannot be opened."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror}", path=str(path), errno=error.errno
        ) from error
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with mmap.mmap(-1, DIRECT_ALIGNMENT) as page:
            os.preadv(fd, [page], 0)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _find_mount(path: Path, root: Path) -> tuple[Path, str, str]:
    """Mount point, type and device of the innermost mount; the last line wins where mounts are stacked."""
    best = (Path("/"), "", "")
    try:
        lines = (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return best
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, (filesystem, device) = left.split(), right.split()[:2]
        mount_point = Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        if path.is_relative_to(mount_point) and len(mount_point.parts) >= len(best[0].parts):
            best = (mount_point, filesystem, device)
    return best
