"""A container's own history moves predicted misses; a short one, or one of another kind of model, does not."""

from __future__ import annotations

import numpy as np
import pytest
from published_shapes import qwen_shape

from sparseflow.config import EngineConfig
from sparseflow.planning.locality import LEAST, MOST, OUTSIDE, locality
from sparseflow.planning.machine import parse_machine
from sparseflow.planning.plan import Question, make_plan

LAYERS, EXPERTS, TOP_K = 40, 256, 8


def _heat(outside: float, total: float = 373.0) -> np.ndarray:
    """So much of all choices lies outside the hottest tenth."""
    heat = np.zeros((LAYERS, EXPERTS, 2), np.float32)
    heat[:, :26, 1] = total * (1 - outside) / 26
    heat[:, 26:, 1] = total * outside / 230
    return heat


def test_without_history_nothing_moves() -> None:
    assert locality(None, TOP_K) == 1.0
    assert locality(np.zeros((LAYERS, EXPERTS, 2), np.float32), TOP_K) == 1.0


def test_a_history_like_the_recorded_sessions_moves_nothing() -> None:
    assert locality(_heat(OUTSIDE), TOP_K) == pytest.approx(1, abs=1e-5)


def test_misses_follow_what_lies_outside_within_bounds() -> None:
    assert locality(_heat(0.8 * OUTSIDE), TOP_K) == pytest.approx(0.8, abs=1e-5)
    assert locality(_heat(1.2 * OUTSIDE), TOP_K) == pytest.approx(1.2, abs=1e-5)
    assert locality(_heat(0.01), TOP_K) == LEAST
    assert locality(_heat(0.8), TOP_K) == MOST


def test_too_short_a_history_and_another_kind_of_model_move_nothing() -> None:
    assert locality(_heat(0.1, total=100.0), TOP_K) == 1.0
    assert locality(_heat(0.1), 64) == 1.0


def test_a_plan_allows_for_it() -> None:
    machine = parse_machine("ram=8GiB")
    rates = []
    for heat in (_heat(0.2), None, _heat(0.5)):
        row = make_plan([qwen_shape()], Question(machine, EngineConfig(), 2, heat=heat)).chosen
        assert row.prediction is not None
        rates.append(row.prediction.hit_rate)
    assert rates[0] > rates[1] > rates[2]
