"""Seeded random values for checkpoints without a chain: they depend on the seed and the tensor's name alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from synthetic.layout import Tensor
from synthetic.pool import to_bf16

BLOCK_VALUES = 1 << 21


def value_blocks(tensor: Tensor, seed: int) -> Iterator[NDArray[np.uint16]]:
    """BF16 bit patterns of a tensor, some at a time. Matrices keep the size of their inputs; blocks add little each."""
    digest = hashlib.sha256(f"{seed}:{tensor.name}".encode()).digest()
    random = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    mean, deviation = _moments(tensor)
    count = tensor.nbytes // 2
    for begin in range(0, count, BLOCK_VALUES):
        values = random.standard_normal(min(BLOCK_VALUES, count - begin), np.float32)
        values *= np.float32(deviation)
        values += np.float32(mean)
        yield to_bf16(values)


def _moments(tensor: Tensor) -> tuple[float, float]:
    """Mean and deviation of a tensor's values."""
    name = tensor.name
    if name.endswith("A_log"):
        return -1.0, 0.5
    if name.endswith("dt_bias"):
        return -2.0, 1.0  # with A_log: decays of about .8 to .999
    if name.endswith("linear_attn.norm.weight"):
        return 1.0, 0.05
    if len(tensor.shape) == 1:
        return 0.0, 0.05  # norms multiply by 1 + weight
    if name.endswith("embed_tokens.weight"):
        return 0.0, 1.0
    if name.endswith("conv1d.weight"):
        return 0.0, 0.5
    gain = (
        0.5
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj", "down_proj.weight"))
        else 1.0
    )
    gain *= 2.0 if name.endswith((".mlp.gate.weight", "lm_head.weight")) else 1.0
    return 0.0, gain * float(tensor.shape[-1]) ** -0.5
