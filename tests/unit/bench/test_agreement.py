"""Agreement of routes and logits, on arrays small enough to count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sparseflow.bench.agreement import Trace, agree, same_choices


def _ids(*rows: list[int]) -> np.ndarray:
    return np.array(rows, np.int32)


def test_choices_are_compared_as_sets_of_a_token() -> None:
    reference = _ids([1, 2, 3], [4, 5, 6])
    assert same_choices(reference, _ids([3, 1, 2], [6, 4, 5])) == 1.0
    assert same_choices(reference, _ids([1, 2, 9], [7, 8, 9])) == pytest.approx(2 / 6)
    assert same_choices(reference, _ids([4, 5, 6], [1, 2, 3])) == 0.0


def test_agreement_is_by_layer_and_the_worst_is_named() -> None:
    logits = np.float32([[0, 1], [2, 0]])
    reference = Trace(logits, {0: _ids([1], [2]), 1: _ids([3], [4])})
    found = Trace(logits[:, ::-1], {0: _ids([1], [2]), 1: _ids([3], [5])})
    agreement = agree(reference, found)
    assert agreement.layer_shares == (1.0, 0.5)
    assert agreement.worst_share == 0.5
    assert agreement.same_argmax == 0.0
    assert agreement.mean_kl > 0
    assert agreement.num_tokens == 2
