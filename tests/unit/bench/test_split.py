"""The parts of a step add up to it, and waiting is told from computing."""

from __future__ import annotations

import pytest

from sparseflow.bench.split import PARTS, closes, split_step

NATIVE = {"embedding": 1.0, "delta": 2.0, "experts": 5.0, "head": 1.0, "norm": 0.5, "linear": 0.25}


def test_parts_add_up_to_the_wall_clock() -> None:
    parts = split_step(NATIVE, wall=12.0, wait=2.0)
    assert set(parts) == set(PARTS)
    assert sum(parts.values()) == pytest.approx(12.0)
    assert parts["expert_compute"] == 3.0
    assert parts["expert_wait"] == 2.0
    assert parts["other_native"] == 0.75
    assert parts["python"] == pytest.approx(12.0 - 9.75)
    assert closes(parts, 12.0)


def test_more_wait_than_the_experts_took_is_bounded_by_it() -> None:
    parts = split_step(NATIVE, wall=15.0, wait=99.0)
    assert parts["expert_wait"] == 5.0
    assert parts["expert_compute"] == 0.0


def test_native_clocks_beyond_the_wall_clock_do_not_close() -> None:
    assert not closes(split_step(NATIVE, wall=9.0, wait=0.0), 9.0)


def test_without_native_clocks_all_is_left_to_python() -> None:
    assert split_step({}, wall=3.0, wait=1.0)["python"] == 3.0
