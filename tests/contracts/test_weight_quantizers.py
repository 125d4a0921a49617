"""Every kernel table turns weights into the codes and scales of the readable twin, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sparseflow.errors import ConfigError
from sparseflow.native import _ext, reference
from sparseflow.native.reference_weights import CODE_RANGES, quantize_groups

INTERLEAVE = {
    "int4-g64-v1": reference.interleave_int4,
    "int4-g32-v1": reference.interleave_int4,
    "int6-g64-v1": reference.interleave_int6,
    "int8-g64-v1": reference.interleave,
}
F32 = NDArray[np.float32]

formats = pytest.mark.parametrize("weight_format", CODE_RANGES)
tables = pytest.mark.parametrize("isa", _ext.isa_names())


def awkward_weights(seed: int) -> F32:
    """Odd shapes; from tiny to large, with outliers, zeros, equal magnitudes and subnormal numbers."""
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(1, 70), rng.integers(1, 300)
    weights = rng.standard_normal((rows, cols)).astype(np.float32)
    weights *= np.float32(2.0 ** rng.integers(-30, 17))
    if seed % 3 == 0:
        weights[rng.random(weights.shape) < 0.05] *= np.float32(50)
    if seed % 4 == 0:
        weights[rng.random(weights.shape) < 0.9] = 0
    if seed % 5 == 0:
        weights = np.float32(0.25) * np.round(weights * np.float32(4))
    if seed % 7 == 0:
        weights[0, ::2] = np.float32(1e-42)
    return np.clip(weights, -524032, 524032)


def same_bytes(weight_format: str, weights: F32, isa: str) -> None:
    codes, scales = quantize_groups(weight_format, weights)
    actual_codes, actual_scales = _ext.quantize_weights(weight_format, weights, isa)
    assert actual_codes.tobytes() == INTERLEAVE[weight_format](codes).tobytes()
    assert actual_scales.dtype == np.float16
    assert actual_scales.tobytes() == reference.interleave_scales(scales).tobytes()


@formats
@tables
def test_groups_are_the_reference_byte_for_byte(weight_format: str, isa: str) -> None:
    for seed in range(40):
        same_bytes(weight_format, awkward_weights(seed), isa)


@tables
def test_rows_are_the_reference_byte_for_byte(isa: str) -> None:
    for seed in range(40):
        weights = awkward_weights(seed)
        weights[0] = 0
        weights[-1] *= np.float32(1e-38)
        codes, scales = reference.quantize_int8(weights)
        actual_codes, actual_scales = _ext.quantize_weights("int8-v1", weights, isa)
        assert actual_codes.tobytes() == reference.interleave(codes).tobytes()
        assert actual_scales.tobytes() == scales.tobytes()


@tables
def test_a_row_that_is_not_finite_is_refused(isa: str) -> None:
    for bad in (np.inf, -np.inf, np.nan):
        weights = np.ones((3, 70), np.float32)
        weights[1, 69] = bad
        with pytest.raises(ConfigError, match="row 1 has a value that is not finite"):
            _ext.quantize_weights("int8-v1", weights, isa)


@formats
@tables
def test_bfloat16_weights_are_widened_exactly(weight_format: str, isa: str) -> None:
    bits = (awkward_weights(1).view(np.uint32) >> 16).astype(np.uint16)
    narrow = _ext.quantize_weights(weight_format, bits, isa)
    wide = _ext.quantize_weights(weight_format, reference.widen_bf16(bits), isa)
    assert [part.tobytes() for part in narrow] == [part.tobytes() for part in wide]


@formats
@tables
def test_weights_at_the_edges_of_float16_scales_neither_vanish_nor_overflow(
    weight_format: str, isa: str
) -> None:
    most = -CODE_RANGES[weight_format].lowest * 65504
    rows = np.zeros((7, 64), np.float32)
    rows[0, 3] = 2.0**-25  # half of the smallest scale: everything is zero
    rows[1, 3] = np.nextafter(np.float32(2.0**-25), np.float32(1))
    rows[2, 5] = -(2.0**-24)
    rows[3, 60] = most
    rows[4, 61] = -most
    rows[5] = 3e-41
    rows[6] = np.linspace(-most, most, 64)
    same_bytes(weight_format, rows, isa)
    codes, scales = quantize_groups(weight_format, rows)
    wide = np.repeat(scales.astype(np.float64), CODE_RANGES[weight_format].num_inputs, axis=1)
    values = (codes.astype(np.int32) - CODE_RANGES[weight_format].offset) * wide
    assert not values[0].any()
    assert not values[5].any()
    assert abs(values[1, 3]) == abs(values[2, 5]) == 2.0**-24
    assert values[3, 60] == most
    assert values[4, 61] == -most
    assert np.isfinite(scales).all()


@formats
@tables
def test_weights_that_no_float16_scale_reaches_are_refused(weight_format: str, isa: str) -> None:
    most = -CODE_RANGES[weight_format].lowest * 65504
    weights = np.ones((3, 65), np.float32)
    weights[2, 64] = -np.nextafter(np.float32(most), np.float32(np.inf))
    with pytest.raises(ConfigError, match=f"row 2 has a value beyond {most}.*{weight_format}"):
        _ext.quantize_weights(weight_format, weights, isa)
    for bad in (np.inf, np.nan):
        weights[2, 64] = bad
        with pytest.raises(ConfigError, match="row 2 has a value that is not finite"):
            _ext.quantize_weights(weight_format, weights, isa)


def squared_error(weights: F32, codes: F32, scales: F32) -> float:
    error = weights.astype(np.float64) - scales[:, None].astype(np.float64) * codes
    return float((error**2).sum())


@formats
def test_the_search_lowers_the_error_of_the_scale_that_holds_the_extreme(
    weight_format: str,
) -> None:
    to = CODE_RANGES[weight_format]
    weights = (
        np.random.default_rng(3).standard_normal((512, 64)).astype(np.float32)[:, : to.num_inputs]
    )
    extreme = weights[np.arange(512), np.abs(weights).argmax(axis=1)]
    plain = (extreme / np.float32(to.lowest)).astype(np.float16).astype(np.float32)
    plain_codes = np.clip(np.rint(weights / plain[:, None]), to.lowest, to.highest)
    codes, scales = quantize_groups(weight_format, weights)
    used = codes[:, : to.num_inputs].astype(np.float32) - to.offset
    searched = squared_error(weights, used, scales[:, 0].astype(np.float32))
    assert searched < 0.95 * squared_error(weights, plain_codes, plain)


def test_a_float_format_does_not_quantize() -> None:
    with pytest.raises(ConfigError, match="bf16-v1 does not quantize"):
        _ext.quantize_weights("bf16-v1", np.ones((1, 1), np.float32))
