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
