"""Divergence: zero for equal logits, the textbook value otherwise, whatever the pieces."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparseflow.errors import ConfigError
from sparseflow.evaluation.divergence import measure, token_divergences


def logits(*rows: list[float]) -> np.ndarray:
    return np.log(np.array(rows, np.float32))


def test_equal_logits_do_not_diverge_and_a_constant_changes_nothing() -> None:
    a = logits([0.5, 0.25, 0.25], [0.1, 0.1, 0.8])
    found = measure([(a, a + np.float32(3))])
    assert found.kl == pytest.approx(0, abs=1e-7)
    assert (found.top1, found.num_tokens) == (1.0, 2)


def test_the_direction_is_from_the_reference() -> None:
    p, q = logits([0.5, 0.5]), logits([0.9, 0.1])
    assert token_divergences(p, q)[0] == pytest.approx(
        0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(5)
    )
    assert token_divergences(q, p)[0] == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2))


def test_pieces_do_not_matter() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 9, 5)).astype(np.float32)
    assert measure([(a, b)]) == measure([(a[:4], b[:4]), (a[4:], b[4:])])


def test_logits_too_far_apart_for_float32_are_no_nan() -> None:
    far = np.array([[1e4, 0.0, -1e4]], np.float32)
    assert measure([(far, -far)]).kl == pytest.approx(2e4)


@pytest.mark.parametrize("pairs", [[], [(np.zeros((2, 3)), np.zeros((2, 4)))]])
def test_what_cannot_be_compared_is_refused(pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
    with pytest.raises(ConfigError):
        measure(pairs)
