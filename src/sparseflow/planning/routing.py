"""How real routers choose: misses over cache size, experts touched over prompt length.

From recorded routes of Qwen3.6-35B-A3B (five sessions of text, code and conversation), replayed through the product's
own cache with the heat of other sessions (`sparseflow replay ROUTES --capacity N% --heat-from-others`). Beyond 70 % the
sessions are too short to see an expert again, so the line goes straight to no misses at 100 %. Prompts beyond 64 tokens
are counted on the benchmark checkpoint, whose routing is fitted to these sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log

MISS_RATES = (
    (0.0, 1.0),
    (0.0312, 0.616),
    (0.0391, 0.558),
    (0.0508, 0.501),
    (0.0625, 0.459),
    (0.0781, 0.413),
    (0.1016, 0.358),
    (0.125, 0.318),
    (0.1484, 0.285),
    (0.1992, 0.227),
    (0.25, 0.181),
    (0.3008, 0.148),
    (0.3516, 0.122),
    (0.3984, 0.101),
    (0.5, 0.067),
    (0.6016, 0.047),
    (0.6992, 0.040),
    (1.0, 0.0),
)
"""(share of a layer's experts that is kept, share of a decode step's lookups that is not there)"""
TOUCHED = (
    (1, 0.031),
    (4, 0.082),
    (16, 0.20),
    (64, 0.40),
    (256, 0.62),
    (1024, 0.82),
    (2048, 0.90),
    (4096, 0.945),
    (16384, 1.0),
)
"""(tokens of a prompt, share of a layer's experts that they choose)"""
REFERENCE_SHARE = 8 / 256
"""Experts a token over experts of a layer, of the model that the tables are from."""


def miss_rate(kept_share: float, experts_share: float = REFERENCE_SHARE) -> float:
    """Share of lookups that will be read, with a cache that keeps `kept_share` of each layer's experts.

    experts_share: experts a token over experts of a layer. A model that chooses a larger share of its experts needs a
    cache as much larger for the same locality; the table is stretched between no cache and all.
    """
    if kept_share >= 1:
        return 0.0
    stretched = kept_share * REFERENCE_SHARE / experts_share if experts_share else kept_share
    blend = max(kept_share, 0.0)
    share = stretched * (1 - blend) + kept_share * blend
    return _interpolate(MISS_RATES, min(max(share, 0.0), 1.0))


def touched_share(tokens: int, experts_share: float = REFERENCE_SHARE) -> float:
    """Share of a layer's experts that a prompt of so many tokens chooses."""
    equivalent = max(1.0, tokens * experts_share / REFERENCE_SHARE)
    points = [(log(count), share) for count, share in TOUCHED]
    return max(min(experts_share, 1.0), _interpolate(points, log(equivalent)))


def _interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """The value at x of straight lines between points of ascending x; the ends are held."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]
