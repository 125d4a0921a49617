"""Probes measure what they say; no speed is asserted beyond that there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparseflow.bench.probes import ProbePlan, Probes, largest_move, mean, run_probes
from sparseflow.container.reader import Container
from sparseflow.errors import ConfigError, StorageError
from sparseflow.native import _ext
from sparseflow.planning import speeds


@pytest.mark.parametrize("loop", ["read", "dot"])
def test_every_pass_over_memory_is_timed(loop: str) -> None:
    seconds = _ext.time_memory_passes(_ext.Runtime("auto", 2), 3 << 20, loop, 4)
    assert len(seconds) == 4
    assert all(each > 0 for each in seconds)


@pytest.mark.parametrize("isa", _ext.isa_names())
def test_int8_peak_of_every_instruction_set(isa: str) -> None:
    assert _ext.measure_int8_rate(_ext.Runtime(isa, 1), 0.0) > 0


def test_unknown_loop_and_sizes_are_refused() -> None:
    runtime = _ext.Runtime("auto", 1)
    with pytest.raises(ConfigError, match="unknown 'write'"):
        _ext.time_memory_passes(runtime, 1 << 20, "write", 1)
    with pytest.raises(ConfigError, match="at least 1"):
        _ext.time_memory_passes(runtime, 0, "read", 1)


@pytest.mark.parametrize("queue_depth", [1, 3, 8])
def test_reads_are_timed_at_any_queue_depth(tiny_moe: Path, queue_depth: int) -> None:
    with Container.open(tiny_moe) as container:
        layout, paths = container.layouts[0], [str(path) for path in container.expert_files]
    engine = _ext.create_read_engine("pread", queue_depth, True)
    reads = [(0, layout.blob_offset(expert)) for expert in range(5)]
    assert _ext.time_reads(engine, paths, reads, layout.blob_bytes) > 0
    assert _ext.time_reads(engine, paths, [], layout.blob_bytes) == 0


def test_failed_read_and_wrong_range_are_errors(tiny_moe: Path, tmp_path: Path) -> None:
    file = tmp_path / "short"
    file.write_bytes(bytes(4096))
    engine = _ext.create_read_engine("pread", 2, False)
    with pytest.raises(StorageError, match="short"):
        _ext.time_reads(engine, [str(file)], [(0, 0), (0, 4096), (0, 8192)], 4096)
    with pytest.raises(ConfigError, match="no file 1"):
        _ext.time_reads(engine, [str(file)], [(1, 0)], 4096)


def test_probes_of_a_container_read_whole_experts(
    tiny_moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speeds, "MEMORY_BYTES", 2 << 20)
    monkeypatch.setattr(speeds, "INT8_SECONDS", 0.0)
    found = run_probes(ProbePlan(1, container=tiny_moe, queue_depth=3))
    with Container.open(tiny_moe) as container:
        assert found.blob_bytes == container.layouts[0].blob_bytes
    assert found.queue_depth == 3
    assert found.disk_bytes > 0
    assert found.memory_bytes == max(found.read_bytes, found.dot_bytes) > 0
    assert run_probes(ProbePlan(1)).disk_bytes == 0


def test_mean_and_move_take_the_better_loop_and_the_larger_change() -> None:
    before = Probes(read_bytes=10, dot_bytes=8, int8_macs=1, disk_bytes=2)
    after = Probes(read_bytes=8, dot_bytes=12, int8_macs=3, disk_bytes=1)
    assert largest_move(before, after) == 1.0
    assert mean(before, after).int8_macs == 2
    assert largest_move(before, before) == 0
