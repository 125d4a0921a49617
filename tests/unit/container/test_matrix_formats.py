"""Conversions of checkpoint rows: exact where they claim to be, refused where they cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sparseflow.container.matrix_formats import convert_rows, to_bf16, to_float32
from sparseflow.container.matrix_sizes import INTEGER_BITS, bits_per_weight, code_bytes, scale_bytes
from sparseflow.container.recipes import KNOWN_FORMATS
from sparseflow.errors import CheckpointError, UnsupportedError
from sparseflow.native import _ext
from synthetic.pool import to_bf16 as round_to_bf16

RANDOM = np.random.default_rng(5)
integer_formats = pytest.mark.parametrize("weight_format", INTEGER_BITS)


def raw(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def bf16_values(rows: int, cols: int) -> NDArray[np.uint16]:
    return round_to_bf16(RANDOM.standard_normal((rows, cols), np.float32))


def test_bf16_and_half_widen_exactly() -> None:
    bits = bf16_values(3, 5)
    wide = to_float32(raw(bits), "BF16", "t")
    assert (wide.view(np.uint32) == bits.reshape(-1).astype(np.uint32) << 16).all()
    half = RANDOM.standard_normal(7).astype(np.float16)
    assert (to_float32(raw(half), "F16", "t") == half).all()


def test_values_that_bf16_holds_narrow_exactly_and_others_are_refused() -> None:
    bits = bf16_values(3, 5).reshape(-1)
    assert (to_bf16(raw(to_float32(raw(bits), "BF16", "t")), "F32", "t") == bits).all()
    with pytest.raises(UnsupportedError, match="t is F32 with values that BF16 cannot hold"):
        to_bf16(raw(np.array([1.0, 1.001], np.float32)), "F32", "t")


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0, 0x7F81])
@pytest.mark.parametrize("weight_format", KNOWN_FORMATS)
def test_values_that_are_not_finite_are_refused(bits: int, weight_format: str) -> None:
    values = bf16_values(17, 66)
    values[16, 65] = bits
    with pytest.raises(CheckpointError, match=r"tensor x.* has a value that is not finite"):
        convert_rows(raw(values), "BF16", (17, 66), weight_format, "tensor x")


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I8", "U8", "F64"])
@pytest.mark.parametrize("weight_format", KNOWN_FORMATS)
def test_other_dtypes_are_refused_by_name(dtype: str, weight_format: str) -> None:
    with pytest.raises(UnsupportedError, match=f"tensor x is {dtype}"):
        convert_rows(np.zeros(16, np.uint8), dtype, (1, 16), weight_format, "tensor x")


def test_int8_codes_are_interleaved_padded_and_within_half_a_step() -> None:
    rows, cols = 21, 70
    bits = bf16_values(rows, cols)
    bits[4] = 0
    codes, scale_bytes = convert_rows(raw(bits), "BF16", (rows, cols), "int8-v1", "t")
    scales = scale_bytes.view(np.float32)
    assert codes.shape == (32 * 128,)
    assert scales.shape == (32,)
    matrix = (
        codes.reshape(2, 32, 16, 4).transpose(0, 2, 1, 3).reshape(32, 128).astype(np.int32) - 128
    )
    assert not matrix[rows:].any()
    assert not matrix[:, cols:].any()
    assert not scales[rows:].any()
    assert scales[4] == 0
    values = to_float32(raw(bits), "BF16", "t").reshape(rows, cols)
    assert (scales[:rows] == np.abs(values).max(axis=1) / np.float32(127)).all()
    exact = values.astype(np.float64)
    error = np.abs(matrix[:rows, :cols] * scales[:rows, None].astype(np.float64) - exact)
    assert (error <= scales[:rows, None].astype(np.float64) * 0.50001).all()
    assert np.abs(matrix).max() == 127


@integer_formats
def test_a_matrix_converted_in_parts_has_the_same_bytes(weight_format: str) -> None:
    bits = bf16_values(53, 70)
    whole = convert_rows(raw(bits), "BF16", (53, 70), weight_format, "t")
    parts = [
        convert_rows(raw(bits[i : i + 16]), "BF16", (min(16, 53 - i), 70), weight_format, "t")
        for i in range(0, 53, 16)
    ]
    for i in range(2):
        assert np.concatenate([part[i] for part in parts]).tobytes() == whole[i].tobytes()


@integer_formats
def test_the_same_weights_as_float32_quantize_to_the_same_bytes(weight_format: str) -> None:
    bits = bf16_values(5, 9)
    narrow = convert_rows(raw(bits), "BF16", (5, 9), weight_format, "t")
    wide = convert_rows(raw(to_float32(raw(bits), "BF16", "t")), "F32", (5, 9), weight_format, "t")
    assert narrow[0].tobytes() == wide[0].tobytes()
    assert narrow[1].tobytes() == wide[1].tobytes()


@pytest.mark.parametrize("weight_format", KNOWN_FORMATS)
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (16, 64), (17, 65), (331, 72)])
def test_sizes_are_those_that_native_code_computes(
    weight_format: str, rows: int, cols: int
) -> None:
    codes = _ext.matrix_code_bytes(weight_format, rows, cols)
    scales = _ext.matrix_scale_bytes(weight_format, rows, cols)
    assert code_bytes(weight_format, rows, cols) == codes
    assert scale_bytes(weight_format, rows, cols) == scales


def test_bits_per_weight_count_the_scales_of_groups() -> None:
    bits = {name: bits_per_weight(name) for name in KNOWN_FORMATS}
    assert bits == {
        "float32": 32,
        "bf16-v1": 16,
        "int8-v1": 8,
        "int8-g64-v1": 8.25,
        "int6-g64-v1": 6.25,
        "int4-g64-v1": 4.25,
        "int4-g32-v1": 4.5,
    }
    for name in ("int8-g64-v1", "int6-g64-v1", "int4-g64-v1", "int4-g32-v1"):
        assert code_bytes(name, 64, 128) + scale_bytes(name, 64, 128) == 1024 * bits[name]
