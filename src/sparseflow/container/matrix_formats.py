"""A weight matrix's bytes in each format: the conversion of rows of a checkpoint.

A part of a matrix (a multiple of 16 rows, unless it is the last) converts by itself, so that no
matrix has to be in memory as a whole. Conversions are elementwise IEEE operations or exact: the
bytes are the same on every machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparseflow.container.matrix_sizes import scale_item_bytes
from sparseflow.container.recipes import BF16, FLOAT32
from sparseflow.errors import CheckpointError, ConfigError, UnsupportedError
from sparseflow.native import _ext

READABLE_DTYPES = ("BF16", "F16", "F32")


def view_scales(
    weight_format: str, raw: NDArray[np.uint8]
) -> NDArray[np.float32] | NDArray[np.float16]:
    """The bytes of the scales of an integer format as numbers."""
    return raw.view(np.float16) if scale_item_bytes(weight_format) == 2 else raw.view(np.float32)


def convert_rows(
    raw: NDArray[np.uint8], dtype: str, shape: tuple[int, int], weight_format: str, where: str
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes and scales, as bytes, of rows [rows, cols] that a checkpoint holds as `raw` in `dtype`.

    Raises CheckpointError for a weight that is not finite and UnsupportedError for a dtype that the
    format cannot hold; both begin with `where`.
    """
    check_dtype(dtype, where)
    no_scales = np.empty(0, np.uint8)
    if weight_format == FLOAT32:
        return to_float32(raw, dtype, where).view(np.uint8), no_scales
    if weight_format == BF16:
        return to_bf16(raw, dtype, where).view(np.uint8), no_scales
    weights = raw.view("<u2") if dtype == "BF16" else to_float32(raw, dtype, where)
    try:
        codes, scales = _ext.quantize_weights(weight_format, weights.reshape(shape))
    except ConfigError as problem:
        raise CheckpointError(f"{where}, {str(problem).removeprefix('weights: ')}") from None
    return codes, scales.view(np.uint8)


def check_dtype(dtype: str, where: str) -> None:
    """Raises UnsupportedError, beginning with `where`, if weights of that dtype are not read."""
    if dtype not in READABLE_DTYPES:
        raise UnsupportedError(
            f"{where} is {dtype}; weights are read as {', '.join(READABLE_DTYPES)}"
        )


def to_float32(raw: NDArray[np.uint8], dtype: str, where: str) -> NDArray[np.float32]:
    """The values as float32, exactly; 1-D. Errors as `convert_rows`."""
    if dtype == "BF16":
        values = (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        check_dtype(dtype, where)
        values = raw.view("<f2" if dtype == "F16" else "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise CheckpointError(f"{where} has a value that is not finite")
    return values


def to_bf16(raw: NDArray[np.uint8], dtype: str, where: str) -> NDArray[np.uint16]:
    """The values as BF16 bit patterns, which must hold them exactly; 1-D. Errors as `convert_rows`."""
    if dtype == "BF16":
        bits = raw.view("<u2")
        if ((bits & np.uint16(0x7F80)) == 0x7F80).any():
            raise CheckpointError(f"{where} has a value that is not finite")
        return bits
    wide = to_float32(raw, dtype, where).view(np.uint32)
    if (wide & np.uint32(0xFFFF)).any():
        raise UnsupportedError(
            f"{where} is {dtype} with values that BF16 cannot hold; choose recipe int8"
        )
    return (wide >> np.uint32(16)).astype(np.uint16)
