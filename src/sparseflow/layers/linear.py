"""Projections that read the same input: it is quantized once for all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparseflow.native import _ext


class Linear:
    """y_i = W_i x for one or more matrices."""

    def __init__(
        self, runtime: _ext.Runtime, matrices: list[_ext.Matrix], part: str = "other"
    ) -> None:
        """part: what the runtime's clocks book it on; see Runtime.take_times."""
        self._runtime = runtime
        self._matrices = matrices
        self._part = part

    def forward(self, x: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """x [n_tokens, cols] -> one [n_tokens, rows_i] for each matrix."""
        outs = [np.empty((x.shape[0], m.rows), dtype=np.float32) for m in self._matrices]
        self._runtime.linear(self._matrices, x, outs, self._part)
        return outs
