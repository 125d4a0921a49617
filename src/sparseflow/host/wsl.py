"""Whether this Linux runs inside Windows (WSL), and whether a directory lies on one of Windows' own drives."""

from __future__ import annotations

import re
from pathlib import Path

from sparseflow.host.disk import DiskFacts
from sparseflow.host.mounts import ROOT

WINDOWS_FILESYSTEMS = frozenset({"9p", "drvfs", "virtiofs"})
"""How WSL shows Windows' drives; others use 9p and virtiofs too."""
_DRIVE = re.compile(r"/mnt/[a-zA-Z]")
_DRIVE_DEVICE = re.compile(r"drvfs|[a-zA-Z]:\\?.*")


def wsl_version(root: Path = ROOT) -> int:
    """1 or 2, from the kernel's name; 0 outside WSL."""
    for name in ("proc/sys/kernel/osrelease", "proc/version"):
        try:
            text = (root / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # WSL 1 calls itself 4.4.0-19041-Microsoft, WSL 2 5.15.90.1-microsoft-standard-WSL2.
        if "WSL2" in text or "microsoft-standard" in text:
            return 2
        if "microsoft" in text.lower():
            return 1
    return 0


def is_windows_drive(disk: DiskFacts) -> bool:
    """Whether a filesystem is one of Windows', to which every read goes through a protocol."""
    if disk.filesystem not in WINDOWS_FILESYSTEMS:
        return False
    return (
        disk.filesystem == "drvfs"
        or "aname=drvfs" in disk.options
        or _DRIVE_DEVICE.fullmatch(disk.device) is not None
        or _DRIVE.fullmatch(str(disk.mount_point)) is not None
    )
