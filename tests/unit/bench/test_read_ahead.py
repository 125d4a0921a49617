"""Read-ahead is changed for the block alone, whatever ends it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from sparseflow.bench.read_ahead import read_ahead, read_ahead_file, read_ahead_kib
from sparseflow.errors import UnsupportedError


@pytest.fixture
def setting(tmp_path: Path) -> Path:
    """A tree in which the device that holds tmp_path is a partition of a disk."""
    device = tmp_path.stat().st_dev
    disk = tmp_path / "sys/devices/disk"
    (disk / "part").mkdir(parents=True)
    (disk / "queue").mkdir()
    blocks = tmp_path / "sys/dev/block"
    blocks.mkdir(parents=True)
    (blocks / f"{os.major(device)}:{os.minor(device)}").symlink_to(disk / "part")
    (disk / "queue/read_ahead_kb").write_text("8192\n")
    return disk / "queue/read_ahead_kb"


def test_a_partitions_setting_is_its_disks(setting: Path, tmp_path: Path) -> None:
    assert read_ahead_file(tmp_path, tmp_path) == setting
    assert read_ahead_kib(tmp_path, tmp_path) == 8192


def test_setting_is_restored_after_an_error(setting: Path, tmp_path: Path) -> None:
    seen = []

    def fail() -> None:
        with read_ahead(tmp_path, 128, tmp_path):
            seen.append(setting.read_text())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen == ["128"]
    assert setting.read_text() == "8192"


def test_setting_is_restored_after_sigterm(setting: Path, tmp_path: Path) -> None:
    def be_ended() -> None:
        with read_ahead(tmp_path, 128, tmp_path):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as end:
        be_ended()
    assert end.value.code == 128 + signal.SIGTERM
    assert setting.read_text() == "8192"


def test_device_without_a_setting_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no read-ahead"):
        read_ahead_file(tmp_path, tmp_path)
