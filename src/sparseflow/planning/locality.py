"""How much more, or less, a container's own runs miss than the table of planning/routing.py says.

The heat table of earlier runs (experts/heat.py) tells how much of a layer's recent choices lies outside its hottest
tenth of experts. Over the five recorded sessions that share follows each session's misses: it is 0.86, 0.91, 0.94, 1.11
and 1.19 of its mean where misses are 0.85, 0.91, 0.99, 1.12 and 1.14 of theirs with a cache of a tenth, and 0.84, 0.79,
1.00, 1.17 and 1.20 with one of a quarter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparseflow.planning.routing import REFERENCE_SHARE

HOTTEST = 26 / 256
"""Share of a layer's experts that count as the hottest."""
OUTSIDE = 0.324
"""Of the slower average's sum, outside of them: mean of the recorded sessions."""
LEAST, MOST = 0.7, 1.4
"""Beyond these the history says more of one text than of the container."""
LEAST_TOKENS = 32
"""Of history; the slower average forgets half in as many."""
SLOW_DECAY = 2 ** (-1 / 32)


def locality(heat: NDArray[np.float32] | None, experts_per_token: int) -> float:
    """What the table's misses are to be multiplied with, 0.7 to 1.4; 1 without a history, with too short a one, or for
    a model that chooses a very different share of its experts.

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
    hottest = slow[:, : max(1, round(HOTTEST * num_experts))].sum(axis=1)
    outside = float((1 - hottest / sums).mean())
    return min(max(outside / OUTSIDE, LEAST), MOST)
