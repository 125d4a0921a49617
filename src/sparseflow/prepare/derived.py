"""Constants that are computed once, at `prepare`, with more digits than any machine's libm and
rounded once to float32.
"""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from sparseflow.errors import CheckpointError

DIGITS = 60


def round_to_float32(value: Decimal) -> np.float32:
    """The float32 nearest to `value`. REQUIRES: |value| is at most the largest float32."""
    near = np.float32(float(value))
    with np.errstate(over="ignore"):
        below, above = (
            np.nextafter(near, np.float32(-np.inf)),
            np.nextafter(near, np.float32(np.inf)),
        )
    candidates = (below, near, above)
    with localcontext(prec=DIGITS * 2):
        return min(
            (c for c in candidates if np.isfinite(c)), key=lambda c: abs(Decimal(float(c)) - value)
        )


def inv_freq(theta: float, rotary_dim: int) -> NDArray[np.float32]:
    """Rotary frequencies theta^(-2i/d), float32 [rotary_dim / 2]."""
    with localcontext(prec=DIGITS):
        powers = [Decimal(theta) ** (Decimal(-2 * i) / rotary_dim) for i in range(rotary_dim // 2)]
    return np.array([round_to_float32(power) for power in powers], np.float32)


def neg_exp(values: NDArray[np.float32], where: str) -> NDArray[np.float32]:
    """-exp(x) of each value. Raises CheckpointError, beginning with `where`, if a result would not
    be a normal float32.
    """
    if (np.abs(values) > 80).any():
        raise CheckpointError(f"{where} has a value beyond 80; its exponential is no float32")
    with localcontext(prec=DIGITS):
        results = [-Decimal(float(value)).exp() for value in values]
    return np.array([round_to_float32(result) for result in results], np.float32)
