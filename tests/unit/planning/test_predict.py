"""Predictions: what they must equal by arithmetic alone, and in which direction they must move."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from published_shapes import qwen_shape

from sparseflow.config import EngineConfig
from sparseflow.errors import ConfigError
from sparseflow.host.memory import MemoryFacts
from sparseflow.planning.budget import settle_shape
from sparseflow.planning.floor import resident_floor, shape_token_bytes
from sparseflow.planning.machine import Machine, assumed_machine, parse_machine
from sparseflow.planning.predict import Prediction, kept_share, predict, prepare_seconds
from sparseflow.planning.routing import MISS_RATES, TOUCHED, miss_rate, touched_share

GIB = 1 << 30


def _predict(machine: Machine, prompt: int = 512, **options: object) -> Prediction:
    shape = qwen_shape()
    config = dataclasses.replace(EngineConfig(), **options)  # type: ignore[arg-type]
    memory = MemoryFacts(machine.total_bytes, machine.available_bytes, None, 0)
    settled, budget = settle_shape(shape, config, memory)
    return predict(shape, settled, budget, machine, prompt)


def test_miss_rates_fall_from_all_to_none() -> None:
    assert miss_rate(0.0) == 1.0
    assert miss_rate(1.0) == 0.0
    rates = [miss_rate(share / 100) for share in range(101)]
    assert rates == sorted(rates, reverse=True)
    assert miss_rate(0.25) == pytest.approx(0.181)


def test_a_model_that_chooses_more_of_its_experts_misses_more() -> None:
    assert miss_rate(0.25, experts_share=2 / 8) > miss_rate(0.25)
    assert miss_rate(1.0, experts_share=2 / 8) == 0.0


def test_touched_share_grows_to_all() -> None:
    shares = [touched_share(tokens) for tokens in (1, 10, 100, 1000, 10_000, 100_000)]
    assert shares == sorted(shares)
    assert shares[0] == 8 / 256
    assert shares[-1] == 1.0


def test_tables_are_monotone() -> None:
    assert [x for x, _ in MISS_RATES] == sorted({x for x, _ in MISS_RATES})
    assert [x for x, _ in TOUCHED] == sorted({x for x, _ in TOUCHED})


def test_resident_decode_is_slower_than_its_floor_but_not_by_half() -> None:
    machine = parse_machine("ram=64GiB,disk=2GB/s,memory=40GB/s")
    found = _predict(machine)
    floor = resident_floor(shape_token_bytes(qwen_shape()), machine.memory)
    assert found.kept_share == found.hit_rate == 1.0
    assert found.disk_bytes_per_token == 0
    assert 0.6 < found.decode_tokens_per_second * floor < 1.0


def test_streaming_counts_its_misses() -> None:
    found = _predict(parse_machine("ram=64GiB,disk=2GB/s,memory=40GB/s"), ram_bytes=8 * GIB)
    lookups = 40 * 8
    assert 0 < found.hit_rate < 1
    bytes_missed = (1 - found.hit_rate) * lookups * qwen_shape().blob_bytes
    assert found.disk_bytes_per_token == pytest.approx(bytes_missed)


def test_a_long_prompt_comes_later_and_a_longer_context_decodes_slower() -> None:
    machine = parse_machine("ram=16GiB")
    short, long = _predict(machine, 128), _predict(machine, 4096)
    assert long.first_token_seconds > short.first_token_seconds
    assert long.decode_tokens_per_second < short.decode_tokens_per_second


def test_kept_share_leaves_the_transient_slots_out() -> None:
    shape, memory = qwen_shape(), MemoryFacts(64 * GIB, 60 * GIB, None, 0)
    config = EngineConfig(cache_bytes=2584 * shape.blob_bytes, store="streaming")
    settled, budget = settle_shape(shape, config, memory)
    assert kept_share(shape, settled, budget) == pytest.approx((2584 - 16 - 8) / 10_240)


def test_preparing_takes_at_least_what_the_disk_takes() -> None:
    machine = assumed_machine(16 * GIB, 12 * GIB, None)
    source = 72_000_000_000
    assert prepare_seconds(qwen_shape(), source, machine, 64) > source / machine.disk


@pytest.mark.parametrize(
    "text", ["", "ram", "disk=1GB/s", "ram=8GiB,speed=3", "ram=much", "ram=0", "ram=8GiB,disk=0"]
)
def test_what_is_no_machine_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_machine(text)


def test_a_described_machine_keeps_something_for_its_system() -> None:
    machine = parse_machine("ram=8GiB,disk=1.9GB/s,memory=35GB/s")
    assert machine.total_bytes == 8 * GIB
    assert machine.available_bytes < 7 * GIB
    assert (machine.disk, machine.memory) == (1.9e9, 35e9)
    assert machine.origin == "described"


def test_what_is_kept_is_what_the_cache_keeps(tiny_moe: Path) -> None:
    from sparseflow.native import _ext
    from sparseflow.planning.budget import arena_sizes
    from sparseflow.planning.model_shape import container_shape

    shape, memory = container_shape(tiny_moe), MemoryFacts(64 * GIB, 60 * GIB, None, 0)
    paths = [str(path) for path in sorted(tiny_moe.glob("experts/*.sfi"))]
    full = shape.num_experts
    for slots in (*range(2, full, 3), full):
        capacity = max(slots * shape.blob_bytes, arena_sizes(tiny_moe)[0][0])
        config = EngineConfig(cache_bytes=capacity, store="streaming", queue_depth=2)
        settled, budget = settle_shape(shape, config, memory)
        source = _ext.StreamingSource(
            paths, budget.arena_bytes, shape.experts_per_token, "scored", 2
        )
        kept = sum(source.layer_capacity)
        assert kept_share(shape, settled, budget) == pytest.approx(kept / full)
