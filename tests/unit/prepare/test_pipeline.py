"""Results come in order, errors where their results would, and little is drawn ahead."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from sparseflow.prepare import pipeline
from sparseflow.prepare.pipeline import map_in_order

THREADS = 3


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "default_threads", lambda: THREADS)


def test_results_are_in_the_order_of_the_items() -> None:
    def slow_if_even(number: int) -> int:
        time.sleep(0.01 * (number % 2 == 0))
        return number * number

    assert list(map_in_order(slow_if_even, range(20))) == [n * n for n in range(20)]
    assert list(map_in_order(slow_if_even, [])) == []


def test_an_error_is_raised_in_place_of_its_result() -> None:
    def refuse_five(number: int) -> int:
        if number == 5:
            raise ValueError("five")
        return number

    results = map_in_order(refuse_five, range(20))
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="five"):
        next(results)


def test_only_two_items_a_thread_are_drawn_ahead() -> None:
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            drawn.append(number)
            yield number

    results = map_in_order(lambda number: number, items())
    for number in range(20):
        assert next(results) == number
        assert len(drawn) <= number + 1 + 4 * THREADS
    results.close()
    assert len(drawn) <= 20 + 4 * THREADS


def test_closing_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    results = map_in_order(lambda number: number, range(100))
    next(results)
    results.close()
    assert threading.active_count() == before
