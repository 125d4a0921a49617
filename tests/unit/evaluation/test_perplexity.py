"""Perplexity against values that can be worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from sparseflow.errors import ConfigError
from sparseflow.evaluation.perplexity import measure


class _Scorer:
    """Logits are chosen by the test; chunks of `chunk` rows."""

    def __init__(self, row: Sequence[float], chunk: int = 3) -> None:
        self._row = row
        self._chunk = chunk
        self.windows: list[int] = []

    def iter_logits(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        self.windows.append(len(ids))
        for start in range(0, len(ids), self._chunk):
            count = min(self._chunk, len(ids) - start)
            yield np.tile(np.asarray(self._row, dtype=np.float32), (count, 1))


def test_uniform_logits_give_the_size_of_the_vocabulary() -> None:
    result = measure(_Scorer([5.0] * 8), [1, 2, 3, 4, 5, 6, 7], window=100)
    assert result.num_tokens == 6
    assert result.perplexity == pytest.approx(8.0, rel=1e-12)


def test_probability_of_the_next_id_is_what_counts() -> None:
    result = measure(_Scorer([math.log(3.0), 0.0]), [0, 0, 0, 1], window=100)
    expected = -(2 * math.log(0.75) + math.log(0.25)) / 3
    assert result.nats_per_token == pytest.approx(expected, rel=1e-6)


def test_first_token_of_each_window_is_not_predicted() -> None:
    scorer = _Scorer([0.0, 0.0])
    result = measure(scorer, [0] * 11, window=5)
    assert scorer.windows == [5, 5]
    assert result.num_tokens == 8


def test_large_logits_do_not_overflow() -> None:
    assert measure(_Scorer([3e4, -3e4]), [0, 0, 0], window=4).nats_per_token == 0.0


@pytest.mark.parametrize(("ids", "window"), [([1], 8), ([1, 2, 3], 1), ([], 8)])
def test_too_little_text_is_refused(ids: list[int], window: int) -> None:
    with pytest.raises(ConfigError):
        measure(_Scorer([0.0]), ids, window)
