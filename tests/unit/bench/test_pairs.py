"""Alternation, repetition of pairs during which the machine moved, and what is kept."""

from __future__ import annotations

from typing import Any

import pytest

from sparseflow.bench.pairs import alternate
from sparseflow.bench.probes import Probes
from sparseflow.bench.statistics import median, moved, ratios


def _probes(memory: float, disk: float = 1.0) -> Probes:
    return Probes(read_bytes=memory, dot_bytes=0.0, int8_macs=1.0, disk_bytes=disk)


class Log:
    """Sides and probes that write down when they ran."""

    def __init__(self, speeds: list[float]) -> None:
        self.events: list[str] = []
        self._speeds = iter(speeds)

    def side(self, name: str) -> Any:
        def run() -> dict[str, Any]:
            self.events.append(name)
            return {"number": len(self.events)}

        return run

    def probe(self) -> Probes:
        self.events.append("p")
        return _probes(next(self._speeds))


def test_sides_alternate_with_a_probe_around_each_pair() -> None:
    log = Log([10.0, 10.5, 10.0])
    pairs = alternate(log.side("a"), log.side("b"), log.probe, 2)
    assert log.events == ["p", "a", "b", "p", "a", "b", "p"]
    assert [pair.before.memory_bytes for pair in pairs.kept] == [10.0, 10.5]
    assert [pair.limits.memory_bytes for pair in pairs.kept] == [10.25, 10.25]
    assert pairs.num_unsteady == 0


def test_pair_whose_probe_moved_is_repeated_and_the_first_try_thrown_away() -> None:
    log = Log([10.0, 20.0, 20.0])
    pairs = alternate(log.side("a"), None, log.probe, 1)
    assert log.events == ["p", "a", "p", "a", "p"]
    assert pairs.kept[0].ours == {"number": 4}
    assert len(pairs.repeated) == 1
    assert pairs.num_unsteady == 0


def test_repeats_are_bounded_and_the_steadiest_try_is_kept_and_marked() -> None:
    log = Log([10.0, 20.0, 30.0, 15.0])
    pairs = alternate(log.side("a"), None, log.probe, 1, max_repeats=2)
    assert log.events.count("a") == 3
    assert pairs.kept[0].move == pytest.approx(0.5)
    assert pairs.num_unsteady == 1
    assert len(pairs.repeated) == 2


def test_disk_that_moved_counts_too() -> None:
    speeds = iter([_probes(10, 1.0), _probes(10, 1.2), _probes(10, 1.2)])
    pairs = alternate(dict, None, lambda: next(speeds), 1)
    assert len(pairs.repeated) == 1


def test_medians_ratios_and_moves() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert moved(10.0, 11.0) == pytest.approx(0.1)
    assert moved(11.0, 10.0) == pytest.approx(0.1)
