"""plan: what is chosen and said on machines of several sizes, from headers alone."""

from __future__ import annotations

import dataclasses

import pytest
from published_shapes import qwen_shape

from sparseflow.config import EngineConfig
from sparseflow.planning.budget import settle_shape
from sparseflow.planning.machine import Machine, parse_machine
from sparseflow.planning.plan import Plan, Question, make_plan

RECIPES = ("bf16", "int8", "int4", "int4-small")
CHECKPOINT_BYTES = 71_903_776_776


def _plan(ram: str, **options: object) -> Plan:
    machine = parse_machine(f"ram={ram},disk=1.9GB/s,memory=35GB/s")
    config = dataclasses.replace(EngineConfig(), **options)  # type: ignore[arg-type]
    shapes = [qwen_shape(name) for name in RECIPES]
    return make_plan(shapes, Question(machine, config, 2, source_bytes=CHECKPOINT_BYTES))


def test_eight_gigabytes_stream_int4() -> None:
    plan = _plan("8GiB")
    assert plan.chosen.recipe == "int4"
    assert plan.chosen.config is not None
    assert plan.chosen.config.store == "streaming"
    assert "streamed" in plan.verdict
    assert any("would stream nothing" in line for line in plan.alternatives)


def test_thirty_two_gigabytes_hold_int4_and_name_no_alternative() -> None:
    plan = _plan("32GiB")
    assert plan.chosen.recipe == "int4"
    assert plan.chosen.is_resident
    assert "every expert in memory" in plan.verdict
    assert plan.alternatives == ()


def test_the_most_accurate_resident_recipe_is_chosen() -> None:
    assert _plan("64GiB").chosen.recipe == "int8"


def test_a_low_bit_file_that_would_fit_as_a_whole_is_named() -> None:
    assert any("IQ2_M" in line for line in _plan("16GiB").alternatives)


def test_what_does_not_fit_is_said_with_the_sum() -> None:
    plan = _plan("3GiB")
    assert not plan.chosen.fits
    assert plan.verdict.startswith("It does not run here")
    assert "dense weights" in plan.verdict
    assert "at least" in plan.verdict


def test_more_memory_is_never_slower() -> None:
    speeds = []
    for ram in ("6GiB", "8GiB", "12GiB", "16GiB", "24GiB", "32GiB"):
        row = next(row for row in _plan(ram).rows if row.recipe == "int4")
        assert row.prediction is not None
        speeds.append(row.prediction.decode_tokens_per_second)
    assert speeds == sorted(speeds)
    assert speeds[-1] > 1.5 * speeds[0]


def test_a_faster_disk_or_memory_is_never_slower() -> None:
    def speed(disk: str, memory: str) -> float:
        machine = parse_machine(f"ram=8GiB,disk={disk},memory={memory}")
        plan = make_plan([qwen_shape()], Question(machine, EngineConfig(), 2))
        assert plan.chosen.prediction is not None
        return plan.chosen.prediction.decode_tokens_per_second

    assert speed("500MB/s", "35GB/s") < speed("1.9GB/s", "35GB/s") < speed("1.9GB/s", "70GB/s")


def test_ram_given_bounds_the_sum() -> None:
    plan = _plan("32GiB", ram_bytes=6 << 30)
    assert plan.chosen.budget is not None
    assert plan.chosen.budget.total_bytes <= 6 << 30


def test_the_rows_sum_is_what_run_would_settle(machine: Machine) -> None:
    from sparseflow.host.memory import MemoryFacts

    row = make_plan([qwen_shape()], Question(machine, EngineConfig(), 2)).chosen
    memory = MemoryFacts(machine.total_bytes, machine.available_bytes, None, 0)
    assert (row.config, row.budget) == settle_shape(qwen_shape(), EngineConfig(), memory)


@pytest.fixture
def machine() -> Machine:
    return parse_machine("ram=16GiB,disk=3GB/s,memory=40GB/s")


def test_disk_and_floor_are_those_of_the_published_model() -> None:
    rows = {row.recipe: row for row in _plan("16GiB").rows}
    experts = 10_240 * qwen_shape("int4").blob_bytes
    assert experts < rows["int4"].shape.file_bytes < experts + (4 << 30)
    assert 2 << 30 < rows["int4"].floor.total_bytes < 3 << 30
    assert rows["bf16"].shape.file_bytes > 64 << 30


def test_more_than_is_available_now_says_what_to_free() -> None:
    plan = _plan("8GiB", ram_bytes=7 << 30)
    assert plan.chosen.fits
    assert "close other programs" in plan.notes[0]
    assert _plan("8GiB").notes == ()
