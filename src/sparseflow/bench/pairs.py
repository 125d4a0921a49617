"""Runs measured alternately, A B A B, with probes of the machine around each pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparseflow.bench.probes import STEADY, Probes, largest_move, mean

Report = dict[str, Any]
Side = Callable[[], Report]
"""Runs once and returns its report."""
Note = Callable[[str, int, int], None]
"""(what, done, total), for a progress bar."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One run of each side and what the machine gave around them."""

    before: Probes
    after: Probes
    ours: Report
    theirs: Report | None

    @property
    def limits(self) -> Probes:
        return mean(self.before, self.after)

    @property
    def move(self) -> float:
        """How far the machine changed meanwhile."""
        return largest_move(self.before, self.after)

    @property
    def is_steady(self) -> bool:
        return self.move <= STEADY

    def to_dict(self) -> dict[str, Any]:
        return {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "move": self.move,
            "is_steady": self.is_steady,
            "ours": self.ours,
            "theirs": self.theirs,
        }


@dataclass(frozen=True, slots=True)
class Pairs:
    """What is evaluated, and what was thrown away because the machine moved."""

    kept: tuple[Pair, ...]
    repeated: tuple[Pair, ...]

    @property
    def num_unsteady(self) -> int:
        """Pairs that were kept although the machine moved, because the repeats were used up."""
        return sum(not pair.is_steady for pair in self.kept)

    def to_dict(self) -> dict[str, Any]:
        return {
            "pairs": [pair.to_dict() for pair in self.kept],
            "repeated": [pair.to_dict() for pair in self.repeated],
            "num_unsteady": self.num_unsteady,
        }


def alternate(
    ours: Side,
    theirs: Side | None,
    probe: Callable[[], Probes],
    count: int,
    *,
    max_repeats: int | None = None,
    note: Note | None = None,
) -> Pairs:
    """`count` pairs. One whose probes moved is repeated, at most `max_repeats` (default `count`) times in all.

    The steadiest try is kept once the repeats are used up. The probe after a pair is the one before the next.
    """
    repeats = count if max_repeats is None else max_repeats
    kept: list[Pair] = []
    repeated: list[Pair] = []
    before = probe()
    for number in range(count):
        if note is not None:
            note("pairs", number, count)
        tries = [_one_pair(ours, theirs, probe, before)]
        while not tries[-1].is_steady and repeats > 0:
            repeats -= 1
            tries.append(_one_pair(ours, theirs, probe, tries[-1].after))
        best = min(tries, key=lambda pair: pair.move)
        kept.append(best)
        repeated += [pair for pair in tries if pair is not best]
        before = tries[-1].after
    if note is not None:
        note("pairs", count, count)
    return Pairs(tuple(kept), tuple(repeated))


def _one_pair(ours: Side, theirs: Side | None, probe: Callable[[], Probes], before: Probes) -> Pair:
    first = ours()
    second = theirs() if theirs is not None else None
    return Pair(before, probe(), first, second)
