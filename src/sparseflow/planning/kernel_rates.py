"""How fast this CPU's kernels multiply, measured on matrices of nothing in particular: what a prediction stands on."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from sparseflow.container.matrix_formats import view_scales
from sparseflow.container.matrix_sizes import code_bytes, scale_bytes
from sparseflow.container.reader import aligned_empty
from sparseflow.container.recipes import BF16, FLOAT32
from sparseflow.native import _ext

SINGLE_BYTES = 160 << 20
"""Of weights: several times the largest cache."""
COLUMNS = 2048
MANY_ROWS, MANY_TOKENS = 2048, 128
PASSES = 5


def single_row_rate(runtime: _ext.Runtime, weight_format: str) -> float:
    """Bytes of weights a second that one row of input is multiplied with, as a step of decode does."""
    bytes_per_row = _matrix_bytes(weight_format, 16, COLUMNS) / 16
    rows = int(SINGLE_BYTES / bytes_per_row) // 16 * 16
    return _matrix_bytes(weight_format, rows, COLUMNS) / _seconds(runtime, weight_format, rows, 1)


def many_rows_rate(runtime: _ext.Runtime, weight_format: str) -> float:
    """Multiply-accumulates a second with many rows of input, as a prompt has."""
    seconds = _seconds(runtime, weight_format, MANY_ROWS, MANY_TOKENS)
    return MANY_ROWS * COLUMNS * MANY_TOKENS / seconds


def float_rate(runtime: _ext.Runtime) -> float:
    """float32 multiply-accumulates a second with many rows of input: attention and the delta rule are of this kind."""
    return many_rows_rate(runtime, FLOAT32)


def _matrix_bytes(weight_format: str, rows: int, cols: int) -> int:
    return code_bytes(weight_format, rows, cols) + scale_bytes(weight_format, rows, cols)


def _seconds(runtime: _ext.Runtime, weight_format: str, rows: int, tokens: int) -> float:
    """Median seconds of one product."""
    matrix = _matrix(weight_format, rows)
    x = np.ones((tokens, COLUMNS), np.float32)
    out = [np.empty((tokens, rows), np.float32)]
    times = []
    for _ in range(PASSES + 1):
        start = time.perf_counter()
        runtime.linear([matrix], x, out, "other")
        times.append(time.perf_counter() - start)
    return median(times[1:])


def _matrix(weight_format: str, rows: int) -> _ext.Matrix:
    """[rows, COLUMNS] on huge pages, as weights are; written, so that every byte is read from a place of its own."""
    codes = aligned_empty(code_bytes(weight_format, rows, COLUMNS))
    codes[:] = _filler(weight_format)
    raw = aligned_empty(scale_bytes(weight_format, rows, COLUMNS))
    scales = view_scales(weight_format, raw) if raw.size else None
    if scales is not None:
        scales[:] = 1
    return _ext.Matrix(weight_format, rows, COLUMNS, codes, scales)


def _filler(weight_format: str) -> int:
    """A byte of which weights are made that are finite in every format."""
    return 0x3F if weight_format in (BF16, FLOAT32) else 0x88
