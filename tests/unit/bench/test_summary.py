"""Figures of a row, from reports made by hand: floors, shares, ratios, splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparseflow.bench import summary
from sparseflow.bench.child import COUNTERS
from sparseflow.bench.pairs import Pair, Pairs
from sparseflow.bench.probes import Probes
from sparseflow.bench.split import split_step
from sparseflow.bench.summary import summarize
from sparseflow.planning.floor import overlap_floor, resident_floor, token_bytes

MEMORY, DISK = 1e9, 1e8
PROBES = Probes(read_bytes=MEMORY, dot_bytes=0, int8_macs=1e9, disk_bytes=DISK)
STEP = 0.5


def _phase(seconds: float, **counters: float) -> dict[str, Any]:
    native = {"delta": seconds / 2, "experts": seconds / 4}
    return {
        "wall_seconds": seconds,
        "cpu_seconds": 2 * seconds,
        "experts": dict.fromkeys(COUNTERS, 0) | counters,
        "layer_reads": [1, 0, 0, 0],
        "native_seconds": native,
        "split": split_step(native, seconds, counters.get("read_wait_seconds", 0.0)),
    }


def _report(step: float, reads: list[int]) -> dict[str, Any]:
    counters = {
        "hits": 3, "misses": 1, "bytes_read": 2000, "read_wait_seconds": 0.1,
        "read_busy_seconds": 0.2, "read_flight_seconds": 0.5, "wait_cpu_seconds": 0.01,
    }  # fmt: skip
    decode = _phase(2 * step, **counters)
    decode |= {"tokens": 2, "token_seconds": [step, step], "step_reads": [reads, reads]}
    prefill = _phase(4.0) | {"tokens": 8, "touched": [1, 2, 3, 4], "chunks": []}
    return {"decode": decode, "prefill": prefill}


def _peer(step: float) -> dict[str, Any]:
    return {
        "token_seconds": [step],
        "prompt_tokens": 8,
        "prefill_seconds": 16.0,
        "watch": {"read_bytes": 7},
    }


def _summary(container: Path, reports: list[dict[str, Any]], peers: list[Any]) -> dict[str, Any]:
    pairs = [Pair(PROBES, PROBES, a, b) for a, b in zip(reports, peers, strict=True)]
    return summarize(Pairs(tuple(pairs), ()), container)


def test_share_is_the_floors_time_over_the_steps(tiny_moe: Path) -> None:
    found = _summary(tiny_moe, [_report(STEP, [])], [None])["decode"]
    floor = resident_floor(token_bytes(tiny_moe), MEMORY)
    assert found["floor_seconds"] == pytest.approx(floor)
    assert found["share"] == pytest.approx(floor / STEP)
    assert found["tokens_per_second"] == pytest.approx(1 / STEP)
    assert "ratio" not in found


def test_streaming_floor_uses_the_reads_of_each_step(tiny_moe: Path) -> None:
    reads = [1, 0, 2, 0]
    found = _summary(tiny_moe, [_report(STEP, reads)], [None])["decode"]
    needed = token_bytes(tiny_moe)
    assert found["floor_seconds"] == pytest.approx(overlap_floor(needed, reads, MEMORY, DISK))
    assert found["disk_bytes"] == 1000
    assert found["memory_bytes"] == needed.resident + 1000


def test_median_of_the_pairs_decides(tiny_moe: Path) -> None:
    reports = [_report(step, []) for step in (0.5, 0.25, 10.0)]
    found = _summary(tiny_moe, reports, [_peer(1.0), _peer(1.0), _peer(1.0)])
    assert found["decode"]["tokens_per_second"] == pytest.approx(2.0)
    assert found["decode"]["ratios"] == pytest.approx([2.0, 4.0, 0.1])
    assert found["decode"]["ratio"] == pytest.approx(2.0)
    assert found["decode"]["peer_read_bytes"] == 7
    assert found["prefill"]["ratio"] == pytest.approx(4.0)


def test_waits_queue_depth_and_cpus_are_of_the_phase(tiny_moe: Path) -> None:
    found = _summary(tiny_moe, [_report(STEP, [])], [None])["decode"]
    assert found["cpus"] == pytest.approx(2.0)
    assert found["mean_queue_depth"] == pytest.approx(2.5)
    assert found["wait_cpus"] == pytest.approx(0.1)
    assert found["hit_rate"] == pytest.approx(0.75)
    shares = found["split"]["shares"]
    assert shares["python"] == pytest.approx(0.25)
    assert shares["expert_wait"] == pytest.approx(0.1)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert found["split"]["closes"]


def test_share_above_one_is_marked(tiny_moe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "largest_cache_bytes", lambda: 0)
    found = _summary(tiny_moe, [_report(1e-9, [])], [None])["decode"]
    assert found["share"] > 1
    assert "mistake" in found["doubt"]


def test_prompt_alone_has_no_decode(tiny_moe: Path) -> None:
    report = _report(STEP, [])
    report["decode"]["token_seconds"] = []
    found = _summary(tiny_moe, [report], [None])
    assert found["decode"] is None
    assert found["prefill"]["tokens_per_second"] == pytest.approx(2.0)
    assert found["prefill"]["touched"] == 10
