"""Bytes of a weight matrix in each format, padding included: arithmetic alone, for plans and layouts."""

from __future__ import annotations

from sparseflow.container.recipes import (
    BF16,
    FLOAT32,
    INT4_G32,
    INT4_G64,
    INT6_G64,
    INT8,
    INT8_G64,
)

ROW_BLOCK = 16
COLUMN_BLOCK = 64
INTEGER_BITS = {INT8: 8, INT8_G64: 8, INT6_G64: 6, INT4_G64: 4, INT4_G32: 4}
"""Bits of a code of the integer formats."""


def scale_group(weight_format: str) -> int:
    """Inputs that share a scale; 0 where a row has one or none."""
    if weight_format in (FLOAT32, BF16, INT8):
        return 0
    return 32 if weight_format == INT4_G32 else 64


def scale_item_bytes(weight_format: str) -> int:
    """Of one scale: 4 (float32), 2 (float16), or 0 if the format has none."""
    if weight_format not in INTEGER_BITS:
        return 0
    return 2 if scale_group(weight_format) else 4


def code_bytes(weight_format: str, rows: int, cols: int) -> int:
    """Bytes of the codes of a matrix [rows, cols], padding included."""
    bits = INTEGER_BITS.get(weight_format)
    if bits is None:
        return rows * cols * {BF16: 2, FLOAT32: 4}[weight_format]
    return round_up(rows, ROW_BLOCK) * round_up(cols, COLUMN_BLOCK) * bits // 8


def scale_bytes(weight_format: str, rows: int, cols: int) -> int:
    """Bytes of the scales of a matrix [rows, cols], padding included."""
    group = scale_group(weight_format)
    groups = round_up(cols, COLUMN_BLOCK) // group if group else 1
    return scale_item_bytes(weight_format) * round_up(rows, ROW_BLOCK) * groups


def bits_per_weight(weight_format: str) -> float:
    """Bits of a weight and its part of a group's scale; a scale that a whole row shares is not counted."""
    if weight_format not in INTEGER_BITS:
        return {BF16: 16.0, FLOAT32: 32.0}[weight_format]
    group = scale_group(weight_format)
    return INTEGER_BITS[weight_format] + (16 / group if group else 0)


def round_up(count: int, to: int) -> int:
    """The smallest multiple of `to` that is at least `count`."""
    return -(-count // to) * to
