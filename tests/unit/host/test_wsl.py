"""Linux inside Windows, from recorded kernel names and mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparseflow.host.disk import DiskFacts
from sparseflow.host.wsl import is_windows_drive, wsl_version


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("4.4.0-19041-Microsoft", 1),
        ("5.15.153.1-microsoft-standard-WSL2", 2),
        ("4.19.84-microsoft-standard", 2),
        ("6.8.0-41-generic", 0),
    ],
)
def test_version_is_in_the_kernels_name(tmp_path: Path, release: str, version: int) -> None:
    path = tmp_path / "proc/sys/kernel/osrelease"
    path.parent.mkdir(parents=True)
    path.write_text(f"{release}\n", encoding="ascii")
    assert wsl_version(tmp_path) == version


def test_without_proc_it_is_not_wsl(tmp_path: Path) -> None:
    assert wsl_version(tmp_path) == 0


@pytest.mark.parametrize(
    ("filesystem", "device", "point", "options", "expected"),
    [
        ("9p", "C:\\", "/mnt/c", {"rw", "aname=drvfs"}, True),
        ("9p", "drvfs", "/mnt/c", {"rw"}, True),
        ("9p", "D:", "/media/data", {"rw"}, True),
        ("drvfs", "C:", "/mnt/c", {"rw"}, True),
        ("virtiofs", "drvfsC1", "/mnt/c", {"rw"}, True),
        ("9p", "hostshare", "/srv/share", {"rw"}, False),
        ("ext4", "/dev/sdc", "/", {"rw"}, False),
        ("ext4", "/dev/sdd1", "/mnt/d", {"rw"}, False),
    ],
)
def test_windows_drives(
    filesystem: str, device: str, point: str, options: set[str], expected: bool
) -> None:
    disk = DiskFacts(filesystem, device, Path(point), 1, 1, frozenset(options))
    assert is_windows_drive(disk) is expected
