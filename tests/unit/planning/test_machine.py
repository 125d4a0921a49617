"""Measuring this machine: rates are numbers of the right order, and a file is read to get them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparseflow.planning import kernel_rates, speeds
from sparseflow.planning.machine import TYPICAL_DISK, measure_machine

FORMATS = ("float32", "bf16-v1", "int8-g64-v1", "int6-g64-v1", "int4-g32-v1")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "MEMORY_BYTES", 2 << 20)
    monkeypatch.setattr(speeds, "MEMORY_PASSES", 3)
    monkeypatch.setattr(kernel_rates, "SINGLE_BYTES", 1 << 20)
    monkeypatch.setattr(kernel_rates, "PASSES", 1)


def test_every_format_gets_its_rates(tmp_path: Path) -> None:
    file = tmp_path / "experts"
    file.write_bytes(bytes(64 * 4096))
    machine = measure_machine([(file, 4096)], FORMATS, 1, "auto", 4)
    assert machine.origin == "measured"
    for name in FORMATS:
        assert machine.single_rate(name) > 1e6
        assert machine.many_rate(name) > 1e6
    assert machine.disk != TYPICAL_DISK
    assert machine.first_read_seconds >= 0


def test_a_file_too_small_to_tell_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "experts"
    file.write_bytes(bytes(4096))
    assert measure_machine([(file, 4096)], (), 1, "auto", 4).disk == TYPICAL_DISK
