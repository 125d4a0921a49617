"""Facts of storage, from a recorded mountinfo and from this machine."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sparseflow.errors import StorageError
from sparseflow.host.disk import disk_facts, reads_direct

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:31 / {home} rw shared:1 - btrfs /dev/nvme0n1p2 rw
31 30 0:32 / {home}/with\\040space rw - 9p drvfs rw
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "home/with space/deep").mkdir(parents=True)
    text = MOUNTS.format(home=(tmp_path / "home").resolve())
    (tmp_path / "proc/self/mountinfo").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "filesystem", "device"),
    [
        ("", "ext4", "/dev/vda"),
        ("home", "btrfs", "/dev/nvme0n1p2"),
        ("home/with space", "9p", "drvfs"),
        ("home/with space/deep", "9p", "drvfs"),
    ],
)
def test_the_innermost_mount_counts(root: Path, path: str, filesystem: str, device: str) -> None:
    facts = disk_facts(root / path, root)
    assert (facts.filesystem, facts.device) == (filesystem, device)
    assert 0 < facts.free_bytes < facts.total_bytes


def test_a_missing_mountinfo_leaves_the_type_empty(tmp_path: Path) -> None:
    assert disk_facts(tmp_path, tmp_path).filesystem == ""


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        disk_facts(tmp_path / "absent")
    with pytest.raises(StorageError, match="No such file"):
        reads_direct(tmp_path / "absent")


def test_a_refused_direct_read_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(4096))

    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "preadv", refuse)
    assert not reads_direct(path)


def _device(root: Path, number: str, name: str, rotational: int, partition: str = "") -> None:
    """A disk in /sys, and what its number leads to: itself or one of its partitions."""
    disk = root / "sys/devices/pci0/block" / name
    (disk / "queue").mkdir(parents=True)
    (disk / "queue/rotational").write_text(f"{rotational}\n", encoding="ascii")
    (disk / "queue/read_ahead_kb").write_text("128\n", encoding="ascii")
    target = disk / partition if partition else disk
    target.mkdir(exist_ok=True)
    for link in (root / "sys/dev/block" / number, root / "sys/class/block" / target.name):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def test_properties_of_a_partition_are_those_of_its_disk(root: Path) -> None:
    _device(root, "254:0", "vda", 1, partition="vda1")
    facts = disk_facts(root, root)
    assert (facts.is_rotational, facts.read_ahead_bytes) == (True, 128 * 1024)


def test_device_of_a_filesystem_that_numbers_its_mounts_is_found_by_name(root: Path) -> None:
    _device(root, "259:2", "nvme0n1", 0, partition="nvme0n1p2")
    facts = disk_facts(root / "home", root)
    assert facts.is_rotational is False


def test_filesystem_without_a_device_has_unknown_properties(root: Path) -> None:
    facts = disk_facts(root / "home/with space", root)
    assert (facts.is_rotational, facts.read_ahead_bytes) == (None, None)


@pytest.mark.parametrize(
    ("line", "is_network", "is_memory", "is_read_only"),
    [
        ("0:50 / {} rw - nfs4 server:/models rw,vers=4.2", True, False, False),
        ("0:51 / {} rw - fuse.sshfs me@server: rw", True, False, False),
        ("0:52 / {} rw - tmpfs tmpfs rw,size=1g", False, True, False),
        ("0:53 /a {} ro,noatime - xfs /dev/sdb1 rw", False, False, True),
    ],
)
def test_kinds_of_storage(
    tmp_path: Path, line: str, is_network: bool, is_memory: bool, is_read_only: bool
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    text = "22 1 " + line.format(tmp_path.resolve()) + "\n"
    (tmp_path / "proc/self/mountinfo").write_text(text, encoding="utf-8")
    facts = disk_facts(tmp_path, tmp_path)
    assert (facts.is_network, facts.is_memory) == (is_network, is_memory)
    assert ("ro" in facts.options) == is_read_only
