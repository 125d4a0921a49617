"""Medians and spreads of few measurements. Medians, because one interrupted run must not decide."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    """The middle value; of an even number the mean of the middle two. REQUIRES: at least one."""
    return statistics.median(values)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """ours[i] / theirs[i] of each pair. REQUIRES: as many of each, none of theirs zero."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def moved(before: float, after: float) -> float:
    """Relative change between two probes, 0 for none: |after - before| / the smaller."""
    return abs(after - before) / min(before, after)
