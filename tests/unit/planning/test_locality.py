"""A container's own history moves predicted misses; a short one, or one of another kind of model, does not."""

from __future__ import annotations

import numpy as np
import pytest
from published_shapes import qwen_shape

from sparseflow.config import EngineConfig
from sparseflow.planning.locality import LEAST, MOST, UNCOVERED, locality
from sparseflow.planning.machine import parse_machine
from sparseflow.planning.plan import Question, make_plan

LAYERS, EXPERTS, TOP_K = 40, 256, 8


def _heat(hot: int, scale: float = 8.0) -> np.ndarray:
    """All choices fall on `hot` experts of each layer alike."""
    heat = np.zeros((LAYERS, EXPERTS, 2), np.float32)
    heat[:, :hot] = scale * 256 / hot
    return heat


def test_without_history_nothing_moves() -> None:
    assert locality(None, 0.2, TOP_K) == 1.0
    assert locality(np.zeros((LAYERS, EXPERTS, 2), np.float32), 0.2, TOP_K) == 1.0


def test_a_narrow_history_misses_less_and_a_wide_one_more() -> None:
    assert locality(_heat(20), 0.2, TOP_K) == LEAST
    assert locality(_heat(256), 0.2, TOP_K) == MOST
    narrow, wide = locality(_heat(68), 0.25, TOP_K), locality(_heat(70), 0.25, TOP_K)
    assert narrow < wide


def test_a_history_like_the_recorded_sessions_moves_nothing() -> None:
    shares = [0.0, *(share for share, _ in UNCOVERED), 1.0]
    outside = [1.0, *(rest for _, rest in UNCOVERED), 0.0]
    edges = np.interp(np.arange(EXPERTS + 1) / EXPERTS, shares, outside)
    heat = np.zeros((LAYERS, EXPERTS, 2), np.float32)
    heat[..., 1] = -np.diff(edges) * 373
    for share in (0.05, 0.1, 0.2):
        assert locality(heat, share, TOP_K) == pytest.approx(1, abs=0.03)


def test_too_short_a_history_and_another_kind_of_model_move_nothing() -> None:
    assert locality(_heat(20, scale=0.1), 0.2, TOP_K) == 1.0
    assert locality(_heat(20), 0.2, 64) == 1.0


def test_a_plan_allows_for_it() -> None:
    machine = parse_machine("ram=8GiB")
    rates = []
    for heat in (_heat(20), None, _heat(256)):
        row = make_plan([qwen_shape()], Question(machine, EngineConfig(), 2, heat=heat)).chosen
        assert row.prediction is not None
        rates.append(row.prediction.hit_rate)
    assert rates[0] > rates[1] > rates[2]
