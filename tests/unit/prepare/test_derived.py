"""Constants rounded once: nearest to the exact value, on every machine."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest

from sparseflow.errors import CheckpointError
from sparseflow.prepare.derived import inv_freq, neg_exp, round_to_float32


@pytest.mark.parametrize(
    "bits", [0x3F800000, 0x3F800001, 0x00000001, 0x007FFFFF, 0x7F7FFFFF, 0x3EAAAAAB]
)
def test_values_between_two_floats_go_to_the_nearer(bits: int) -> None:
    low = np.uint32(bits).view(np.float32)
    high = np.uint32(min(bits + 1, 0x7F7FFFFF)).view(np.float32)
    with localcontext(prec=200):
        width = Decimal(float(high)) - Decimal(float(low))
        for share, nearest in (("0.499999999999999", low), ("0.500000000000001", high), ("0", low)):
            assert round_to_float32(Decimal(float(low)) + width * Decimal(share)) == nearest


def test_double_rounding_is_avoided() -> None:
    # 1 + 2^-24 + 2^-60 rounds to 1 + 2^-23, but through float64 it would be a tie and go to 1.
    with localcontext(prec=100):
        value = 1 + Decimal(2) ** -24 + Decimal(2) ** -60
    assert round_to_float32(value) == np.float32(1 + 2.0**-23)


def test_rotary_frequencies_begin_at_one_and_fall() -> None:
    frequencies = inv_freq(1e7, 64)
    assert frequencies.dtype == np.float32
    assert frequencies.shape == (32,)
    assert frequencies[0] == 1
    assert (np.diff(frequencies) < 0).all()
    assert frequencies[16] == np.float32(1e7**-0.5)


def test_neg_exp_of_known_values() -> None:
    values = neg_exp(np.array([0, 1, -80, 80], np.float32), "t")
    assert values[0] == -1
    assert values[1] == np.float32(-2.718281828459045)
    assert np.isfinite(values).all()
    assert (values < 0).all()


@pytest.mark.parametrize("value", [80.5, -81, 3e38])
def test_values_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(CheckpointError, match="t has a value beyond 80"):
        neg_exp(np.array([0, value], np.float32), "t")
