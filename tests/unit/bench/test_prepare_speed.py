"""The speed of `prepare` on a tiny checkpoint, with tiny probes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sparseflow.bench import prepare_speed
from sparseflow.bench.prepare_speed import PrepareRun, measure_prepare, peak, probe_write, share
from sparseflow.errors import ConfigError


def test_share_is_of_the_slower_of_reading_and_writing() -> None:
    run = PrepareRun(2.0, 1000, 0, read_speed=400.0, write_speed=250.0)
    assert run.speed == 500.0
    assert run.share == 2.0


def test_prepare_is_measured_and_leaves_nothing(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_speed, "BLOCK", 4096)
    monkeypatch.setattr(prepare_speed, "WRITE_BYTES", 1 << 16)
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint, checkpoint)
    run = measure_prepare(checkpoint, "int8")
    assert run.checkpoint_bytes == (checkpoint / "model.safetensors").stat().st_size
    assert run.share > 0
    assert run.peak_bytes > 1 << 20
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert share(checkpoint, "int8")[0] == run.share
    assert peak(checkpoint, "int8")[0] == run.peak_bytes


def test_write_probe_leaves_no_file(tmp_path: Path) -> None:
    assert probe_write(tmp_path / "probe", 1 << 22) > 0
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no checkpoint"):
        share(None, "int8")
    with pytest.raises(ConfigError, match="no safetensors"):
        measure_prepare(tmp_path, "int8")
