"""The readable twin of the search for the scales of weight groups (docs/numerics.md, section 4). Only tests use it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparseflow.native.reference import F32, GROUP, LANES, U8, tree

F16 = NDArray[np.float16]
_MAGIC = np.float32(1.5 * 2.0**23)


@dataclass(frozen=True)
class CodeRange:
    """Codes of a format, and what the extreme value of a group becomes under the scales that are tried."""

    lowest: int
    highest: int
    offset: int
    num_inputs: int
    """Of a group."""
    divisors: tuple[float, ...]


_INT4_DIVISORS = (-9.0, -8.5, -8.25, -8.0, -7.75, -7.5, -7.0, 7.0, 7.25, 7.5)
CODE_RANGES = {
    "int4-g64-v1": CodeRange(-8, 7, 8, 64, _INT4_DIVISORS),
    "int4-g32-v1": CodeRange(-8, 7, 8, 32, _INT4_DIVISORS),
    "int6-g64-v1": CodeRange(
        -32, 31, 32, 64, (-32.25, -31.75, -31.25, -30.75, -30.25, 30.5, 31.0, 31.5)
    ),
    "int8-g64-v1": CodeRange(-127, 127, 128, 64, (127.0, 126.0, 125.0)),
}


def quantize_groups(weight_format: str, weights: F32) -> tuple[U8, F16]:
    """Codes + offset [rows padded to 16, cols padded to 64] not yet interleaved, scales [padded rows, groups].

    REQUIRES: finite weights that the format can hold.
    """
    to = CODE_RANGES[weight_format]
    rows, cols = weights.shape
    shape = (-(-rows // LANES) * LANES, -(-cols // GROUP) * GROUP)
    padded = np.zeros(shape, np.float32)
    padded[:rows, :cols] = weights
    groups = padded.reshape(-1, to.num_inputs)
    with np.errstate(all="ignore"):
        amax = np.abs(groups).max(axis=1)
        is_zero = amax <= np.float32(2.0**-25)
        found = _nearest_half(_search_scales(groups, amax, to))
        scales = np.where(is_zero, np.float16(0), found).astype(np.float16)
        wide: F32 = scales.astype(np.float32)
        rounded = _nearest_codes(np.asarray(groups / wide[:, None], np.float32), to)
        codes = np.where(is_zero[:, None], np.float32(0), rounded)
    stored = (codes + np.float32(to.offset)).astype(np.uint8)
    return stored.reshape(shape), scales.reshape(shape[0], -1)


def _search_scales(groups: F32, amax: F32, to: CodeRange) -> F32:
    """For each group, the scale sum(x q) / sum(q^2) of the best of the proposed codes q."""
    exponent = (amax.view(np.int32) >> 23) - 127
    up = ((exponent + 127) << 23).astype(np.int32).view(np.float32)
    down = ((127 - exponent) << 23).astype(np.int32).view(np.float32)
    x = groups * down[:, None]
    extreme = np.where(groups.max(axis=1) == amax, amax, -amax) * down
    best_gain = np.full(amax.shape, -1, np.float32)
    best_scale = np.zeros(amax.shape, np.float32)
    for divisor in to.divisors:
        q = _nearest_codes(x * (np.float32(divisor) / extreme)[:, None], to)
        product = _sum(x * q)
        scale = product / _sum(q * q)
        gain = product * scale
        is_better = gain > best_gain
        best_gain = np.where(is_better, gain, best_gain)
        best_scale = np.where(is_better, scale, best_scale)
    return np.asarray(best_scale * up)


def _sum(terms: F32) -> F32:
    """Over groups [n, 64 or 32]: 16 partial sums of four or two terms each, then the tree."""
    t = terms.reshape(len(terms), -1, LANES)
    total = t[:, 0]
    for i in range(1, t.shape[1]):
        total = total + t[:, i]
    return tree(total)


def _nearest_codes(x: F32, to: CodeRange) -> F32:
    clamped = np.clip(x, np.float32(to.lowest), np.float32(to.highest))
    return np.asarray((clamped + _MAGIC) - _MAGIC)


def _nearest_half(scales: F32) -> F16:
    """The float16 nearest to each, ties to even, kept away from zero and infinity."""
    kept = np.clip(np.abs(scales), np.float32(2.0**-24), np.float32(65504))
    return np.where(scales < 0, -kept, kept).astype(np.float16)
