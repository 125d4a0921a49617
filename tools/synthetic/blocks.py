"""Experts as blocks of a GGUF type, copied out of the pool, which is quantized once."""

from __future__ import annotations

from functools import lru_cache

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from synthetic.layout import PREFIX, Tensor
from synthetic.pool import widen
from synthetic.weights import ChainWeights

BLOCK_VALUES = 1 << 20

Bytes = NDArray[np.uint8]


class PoolBlocks:
    """Calling it gives one matrix: what quantizing the expert's weights would give, to the byte."""

    def __init__(self, weights: ChainWeights, num_experts: int, inner: int, hidden: int) -> None:
        self._weights = weights
        self._inner, self._hidden = inner, hidden
        self._num_experts = num_experts
        self._pool = lru_cache(1)(self._quantized_pool)
        self._runs = lru_cache(4)(self._quantized_runs)

    def __call__(self, layer: int, expert: int, projection: int, to: Type) -> Bytes:
        """gate (0), up (1) or down (2) of an expert in the type `to`."""
        tensor = self._tensor(layer, projection)
        windows = self._weights.windows(tensor)
        assert windows is not None
        size = self._inner * self._hidden
        first = size if projection == 1 else 0
        begin, end = (
            _nbytes(windows.offsets[expert] + value, to) for value in (first, first + size)
        )
        blocks = self._pool(to)[begin:end].copy()
        for row, run in self._runs(tensor, to):
            at = _nbytes(row * windows.cols - first, to)
            if 0 <= at < blocks.size:
                blocks[at : at + run.size] = run
        return blocks

    def _tensor(self, layer: int, projection: int) -> Tensor:
        prefix = f"{PREFIX}layers.{layer}.mlp.experts."
        if projection == 2:
            return Tensor(prefix + "down_proj", (self._num_experts, self._hidden, self._inner))
        return Tensor(prefix + "gate_up_proj", (self._num_experts, 2 * self._inner, self._hidden))

    def _quantized_pool(self, to: Type) -> Bytes:
        bits = self._weights.pool.bits
        blocks = np.empty(_nbytes(bits.size, to), np.uint8)
        for begin in range(0, bits.size, BLOCK_VALUES):
            part = gguf.quants.quantize(widen(bits[begin : begin + BLOCK_VALUES]), to)
            at = _nbytes(begin, to)
            blocks[at : at + part.size] = part
        return blocks

    def _quantized_runs(self, tensor: Tensor, to: Type) -> list[tuple[int, Bytes]]:
        windows = self._weights.windows(tensor)
        assert windows is not None
        return [
            (run.row, gguf.quants.quantize(widen(run.bits), to).reshape(-1)) for run in windows.runs
        ]


def _nbytes(count: int, to: Type) -> int:
    """Bytes of that many values; negative counts give negative bytes."""
    block, nbytes = gguf.GGML_QUANT_SIZES[to]
    return int(count // block * nbytes)
