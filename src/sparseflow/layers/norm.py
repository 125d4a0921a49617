"""RMS normalisation of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparseflow.native import _ext


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight; families with (1 + w) norms pass that as the weight."""

    def __init__(self, runtime: _ext.Runtime, weight: NDArray[np.float32], eps: float) -> None:
        self._runtime = runtime
        self.weight = weight  # [hidden_size]
        self.eps = eps

    def forward(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """x [n_tokens, hidden_size] -> the same shape."""
        out = np.empty_like(x)
        self._runtime.rms_norm(x, self.weight, self.eps, out)
        return out
