"""Every weight of a model with a chain, by element range: windows of the pool, rows that carry the signal, and the
chain's embeddings and head.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparseflow.checkpoint.tensor_classes import find_identity, get_family
from synthetic.chain import Chain
from synthetic.layout import Tensor
from synthetic.pool import Pool, to_bf16
from synthetic.signal import Run, Signal

Bits = NDArray[np.uint16]

POOL_VALUES = {"true": 1 << 26, "tiny-chain": 1 << 24}
_PLACES_PER_LAYER = 1024
_DENSE_PLACES = {
    "linear_attn.in_proj_qkv.weight": 0,
    "linear_attn.in_proj_z.weight": 1,
    "linear_attn.out_proj.weight": 2,
    "self_attn.q_proj.weight": 3,
    "self_attn.k_proj.weight": 4,
    "self_attn.v_proj.weight": 5,
    "self_attn.o_proj.weight": 6,
    "mlp.shared_expert.gate_proj.weight": 7,
    "mlp.shared_expert.up_proj.weight": 8,
    "mlp.shared_expert.down_proj.weight": 9,
}
_EXPERT_PLACES = 16
"""The first of two for every expert: gate and up, down."""


@dataclass(frozen=True)
class Windows:
    """Matrices of one shape, one after another, each a window of the pool with rows replaced by runs."""

    offsets: tuple[int, ...]
    cols: int
    size: int
    """Values of one matrix."""
    runs: tuple[Run, ...]


class ChainWeights:
    """The weights of the text model that `config` describes; every method may be called from several threads."""

    def __init__(self, config: dict[str, Any], geometry: str, seed: int) -> None:
        self._config = {**config, "model_type": "qwen3_5_moe"}
        self._family = get_family("qwen3_5_moe")
        self._seed = seed
        longest = 4 * config["hidden_size"] ** 2
        self.pool = Pool(seed, POOL_VALUES[geometry], longest)
        self.signal = Signal(config)
        self.chain = Chain(config, self.pool, self.signal, seed)
        self._windows: dict[str, Windows] = {}
        self._small = lru_cache(64)(self._make_small)

    def read(self, tensor: Tensor, begin: int, count: int) -> Bits:
        """The BF16 values `begin`, `begin` + 1, ... of a tensor."""
        name = self.canonical(tensor)
        by_rows: dict[str, Callable[[int, int], Bits]] = {
            "embed_tokens.weight": self.chain.embedding_rows,
            "lm_head.weight": self.chain.head_rows,
        }
        if name in by_rows:
            cols = tensor.shape[-1]
            first, last = begin // cols, -(-(begin + count) // cols)
            rows = by_rows[name](first, last).reshape(-1)
            return rows[begin - first * cols :][:count]
        windows = self.windows(tensor)
        if windows is None:
            return self._small(tensor)[begin : begin + count].copy()
        return self._read_windows(windows, begin, count)

    def canonical(self, tensor: Tensor) -> str:
        """The tensor's name without the family's prefixes."""
        identity = find_identity(tensor.name, self._family, self._config)
        assert identity is not None, tensor.name
        return identity.canonical

    def windows(self, tensor: Tensor) -> Windows | None:
        """How a large matrix, or the experts' matrices, are made of the pool; None if the tensor is not."""
        name = self.canonical(tensor)
        if name not in self._windows:
            made = self._make_windows(name, tensor.shape)
            if made is None:
                return None
            self._windows[name] = made
        return self._windows[name]

    def _make_windows(self, name: str, shape: tuple[int, ...]) -> Windows | None:
        _, number, part = (*name.split(".", 2), "", "")[:3]
        if part in _DENSE_PLACES:
            place = int(number) * _PLACES_PER_LAYER + _DENSE_PLACES[part]
            return self._windows_of(name, [self.pool.offset(place)], shape)
        if not part.startswith("mlp.experts."):
            return None
        expert, _, projection = part.removeprefix("mlp.experts.").partition(".")
        if not projection:
            first = int(number) * _PLACES_PER_LAYER + _EXPERT_PLACES + (expert == "down_proj")
            places = [self.pool.offset(first + 2 * e) for e in range(shape[0])]
            return self._windows_of(name, places, shape[1:])
        place = int(number) * _PLACES_PER_LAYER + _EXPERT_PLACES + 2 * int(expert)
        return self._unfused(name, place, projection, shape)

    def _windows_of(self, name: str, offsets: list[int], shape: tuple[int, ...]) -> Windows:
        return Windows(tuple(offsets), shape[1], shape[0] * shape[1], tuple(self.signal.runs(name)))

    def _unfused(self, name: str, place: int, projection: str, shape: tuple[int, ...]) -> Windows:
        """A part of the fused matrices' windows."""
        prefix = name.partition(".experts.")[0] + ".experts."
        rows, cols = shape
        if projection == "down_proj.weight":
            runs = self.signal.runs(prefix + "down_proj")
            return Windows((self.pool.offset(place + 1),), cols, rows * cols, tuple(runs))
        first = rows if projection == "up_proj.weight" else 0
        runs = [
            Run(run.row - first, run.bits)
            for run in self.signal.runs(prefix + "gate_up_proj")
            if first <= run.row < first + rows
        ]
        offset = self.pool.offset(place) + first * cols
        return Windows((offset,), cols, rows * cols, tuple(runs))

    def _read_windows(self, windows: Windows, begin: int, count: int) -> Bits:
        out = np.empty(count, np.uint16)
        done = 0
        while done < count:
            matrix, within = divmod(begin + done, windows.size)
            step = min(count - done, windows.size - within)
            part = out[done : done + step]
            offset = windows.offsets[matrix] + within
            part[:] = self.pool.bits[offset : offset + step]
            for run in windows.runs:
                _overlay(part, within, run.row * windows.cols, run.bits.reshape(-1))
            done += step
        return out

    def _make_small(self, tensor: Tensor) -> Bits:
        """A tensor of few values, whole."""
        name = self.canonical(tensor)
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        random = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
        values = random.standard_normal(tensor.shape, np.float32)
        if name.endswith("A_log"):
            values = _decay_logs(values)
        elif name.endswith("dt_bias"):
            values = np.full_like(values, -2.0)
        else:
            mean, deviation = _moments(name, tensor.shape)
            values = np.float32(deviation) * values + np.float32(mean)
        self.signal.adjust(name, values)
        bits = to_bf16(values).reshape(-1)
        for run in self.signal.runs(name):
            _overlay(bits, 0, run.row * run.bits.shape[1], run.bits.reshape(-1))
        return bits


def _moments(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    if name.endswith("linear_attn.norm.weight"):
        return 1.0, 0.05
    if len(shape) == 1:
        return 0.0, 0.05  # norms multiply by 1 + weight
    if name.endswith("conv1d.weight"):
        return 0.0, 0.5
    gain = {"mlp.gate.weight": 0.5, "in_proj_a.weight": 0.125}
    part = next((part for part in gain if name.endswith(part)), "")
    return 0.0, gain.get(part, 1.0) * float(shape[-1]) ** -0.5


def _decay_logs(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """A_log of decays from .8 to .999, their distances from 1 evenly spread by ratio, in the order of the values."""
    ranks = np.argsort(np.argsort(values)) / max(1, values.size - 1)
    decays = 1 - 0.2 * (0.001 / 0.2) ** ranks
    logs: NDArray[np.float32] = np.log(-np.log(decays) / np.log1p(np.exp(-2.0))).astype(np.float32)
    return logs


def _overlay(part: Bits, begin: int, first: int, values: Bits) -> None:
    """Puts `values`, which lie at `first`, over the range of elements that `part` holds from `begin` on."""
    low, high = max(begin, first), min(begin + part.size, first + values.size)
    if low < high:
        part[low - begin : high - begin] = values[low - first : high - first]
