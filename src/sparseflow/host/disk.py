"""The storage below a path: filesystem, device, room, and whether reads past the page cache work."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from sparseflow.errors import StorageError
from sparseflow.host.cgroup import read_number
from sparseflow.host.mounts import ROOT, Mount, read_mounts

DIRECT_ALIGNMENT = 4096
"""Bytes to which the native reader aligns offsets, lengths and buffers."""

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"}
    | {f"fuse.{name}" for name in ("ceph", "glusterfs", "sshfs", "rclone", "s3fs", "gcsfuse")}
)
MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs"})


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
    options: frozenset[str] = frozenset()
    """Of the mount and of the filesystem: `ro`, `noatime`."""
    is_rotational: bool | None = None
    """Whether the device says that it spins, as virtual disks often do without; None if it is not known."""
    read_ahead_bytes: int | None = None
    """Of the device, for reads through the page cache."""

    @property
    def is_network(self) -> bool:
        """Whether another machine holds the bytes."""
        return self.filesystem in NETWORK_FILESYSTEMS

    @property
    def is_memory(self) -> bool:
        """Whether the bytes lie in memory and not on storage."""
        return self.filesystem in MEMORY_FILESYSTEMS


def disk_facts(path: Path, root: Path = ROOT) -> DiskFacts:
    """Reads below `root`: /proc/self/mountinfo and /sys. Raises StorageError if there is no such path."""
    try:
        resolved = path.resolve(strict=True)
        sizes = os.statvfs(resolved)
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror}", path=str(path), errno=error.errno
        ) from error
    mount = _find_mount(resolved, root)
    queue = None if mount is None else _device_queue(mount, root)
    rotational = None if queue is None else read_number(queue / "rotational")
    ahead = None if queue is None else read_number(queue / "read_ahead_kb")
    unit = sizes.f_frsize
    return DiskFacts(
        filesystem="" if mount is None else mount.filesystem,
        device="" if mount is None else mount.device,
        mount_point=Path("/") if mount is None else mount.point,
        total_bytes=sizes.f_blocks * unit,
        free_bytes=sizes.f_bavail * unit,
        options=frozenset() if mount is None else mount.options,
        is_rotational=None if rotational is None else rotational == 1,
        read_ahead_bytes=None if ahead is None else ahead * 1024,
    )


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


def _find_mount(path: Path, root: Path) -> Mount | None:
    """The innermost mount; the last line wins where mounts are stacked."""
    best = None
    for mount in read_mounts(root):
        if path.is_relative_to(mount.point) and (
            best is None or len(mount.point.parts) >= len(best.point.parts)
        ):
            best = mount
    return best


def _device_queue(mount: Mount, root: Path) -> Path | None:
    """The directory with the properties of a mount's device; a partition's are its disk's.

    btrfs and others number their mounts themselves: there the device's name leads on, through links such as
    /dev/mapper's.
    """
    name = Path(os.path.realpath(root / mount.device.lstrip("/"))).name
    for entry in (f"sys/dev/block/{mount.device_number}", f"sys/class/block/{name}"):
        device = Path(os.path.realpath(root / entry))
        for place in (device, device.parent):
            if (place / "queue").is_dir():
                return place / "queue"
    return None
