"""How much more, or less, a container's own runs miss than the table of planning/routing.py says.

The heat table of earlier runs (experts/heat.py) tells how much of a layer's recent choices lies outside its hottest
experts. Over the five recorded sessions that share follows each session's misses: at a tenth of the experts, 0.86,
0.91, 0.94, 1.11 and 1.19 of the mean where misses are 0.85, 0.91, 0.99, 1.12 and 1.14 of theirs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparseflow.planning.routing import REFERENCE_SHARE, interpolate

UNCOVERED = (
    (0.0312, 0.640),
    (0.0391, 0.588),
    (0.0508, 0.521),
    (0.0625, 0.465),
    (0.0781, 0.401),
    (0.1016, 0.324),
    (0.125, 0.263),
    (0.1484, 0.214),
    (0.1758, 0.167),
    (0.1992, 0.134),
    (0.2266, 0.102),
    (0.25, 0.080),
)
"""(share of a layer's experts, share of the slower average's sum outside the hottest so many), mean of the sessions."""
LEAST, MOST = 0.5, 1.5
"""Beyond these the history says more of one text than of the container."""
LEAST_TOKENS = 32
"""Of history; the slower average forgets half in as many."""
SLOW_DECAY = 2 ** (-1 / 32)


def locality(heat: NDArray[np.float32] | None, kept_share: float, experts_per_token: int) -> float:
    """What the table's misses are to be multiplied with, 0.5 to 1.5; 1 without a history, or with too short a one.

    heat: [num_layers, num_experts, 2], as ExpertStore exports it.
    """
    if heat is None or heat.size == 0:
        return 1.0
    slow = np.sort(heat[..., 1].astype(np.float64), axis=1)[:, ::-1]
    num_experts = slow.shape[1]
    is_like_the_reference = 0.5 <= experts_per_token / num_experts / REFERENCE_SHARE <= 2
    full = experts_per_token * (1 - SLOW_DECAY**LEAST_TOKENS) / (1 - SLOW_DECAY)
    sums = slow.sum(axis=1)
    if not is_like_the_reference or float(sums.min()) < full:
        return 1.0
    share = min(max(kept_share, UNCOVERED[0][0]), UNCOVERED[-1][0])
    hottest = slow[:, : max(1, round(share * num_experts))].sum(axis=1)
    uncovered = float((1 - hottest / sums).mean())
    return float(min(max(uncovered / interpolate(UNCOVERED, share), LEAST), MOST))
