"""The component that only blocks write, which decides the links of the chain.

The last 192 hidden channels are reserved. 64 hold the same constant in every embedding. 64 watch layers: layer j has
one, in which the embedding writes a little less than minus the sum of what the layer's mixer, its chosen experts (their
router weights sum to 1) and its shared expert write there; so after layer j it holds a small positive margin, and less
than minus that if any of them is missing. 64 are the last layer's, which the head reads: their sign chooses between a
link's two candidates. The last shared expert has an alarm neuron for every watched channel: it is silent above 0 and
drowns the head's channels below.

What blocks write depends on the constant channels alone, and its weights are alike within a group of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthetic import levels
from synthetic.levels import GROUP, NEURONS, RESERVED, RMS
from synthetic.pool import to_bf16, widen

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Run:
    """Rows `row`, `row` + 1, ... of a matrix that are not random."""

    row: int
    bits: NDArray[np.uint16]
    """BF16 [rows, cols]."""


class Signal:
    """What the reserved channels and neurons of a model hold. `config` is a text configuration."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self.hidden: int = config["hidden_size"]
        self.layers: int = config["num_hidden_layers"]
        self.first = self.hidden - RESERVED
        """The first reserved channel."""
        if self.layers > GROUP:
            raise ValueError(f"{self.layers} layers; at most {GROUP} can be watched")

    def channels(self, layer: int) -> slice:
        """Where a layer's blocks write: one watched channel, or, for the last layer, those that the head reads."""
        if layer == self.layers - 1:
            return slice(self.hidden - GROUP, self.hidden)
        return slice(self.first + GROUP + layer, self.first + GROUP + layer + 1)

    @cached_property
    def amounts(self) -> list[tuple[float, float, float]]:
        """What mixer, chosen experts and shared expert of each layer write."""
        return [levels.block_amounts(kind) for kind in self._config["layer_types"]]

    @cached_property
    def offsets(self) -> F32:
        """What every embedding holds in each layer's channels, float32 [layers]; BF16 holds it."""
        targets = [-(sum(parts) - levels.MARGIN * parts[1]) for parts in self.amounts]
        return widen(to_bf16(np.array(targets, np.float32)))

    @property
    def margins(self) -> F32:
        """What is left in each layer's channels if nothing is missing, float32 [layers]."""
        return np.array([sum(parts) for parts in self.amounts], np.float32) + self.offsets

    @cached_property
    def embedding(self) -> F32:
        """The reserved channels of every embedding, float32 [192]."""
        values = np.zeros(self.hidden, np.float32)
        values[self.first : self.first + GROUP] = levels.CONSTANT
        for layer in range(self.layers):
            values[self.channels(layer)] = self.offsets[layer]
        return values[self.first :]

    def adjust(self, name: str, values: F32) -> None:
        """Puts what is not random into a small tensor [..., cols]; routers do not see reserved channels."""
        if name == "norm.weight":
            values[self.first :] = 0.0
            values[self.hidden - GROUP :] = levels.HEAD_GAIN
        elif name.endswith(("layernorm.weight", ".mlp.gate.weight")):
            values[..., self.first :] = 0.0
        elif name.endswith("linear_attn.norm.weight"):
            values[:GROUP] = 1.0

    def runs(self, name: str) -> list[Run]:
        """The rows of a matrix (of one expert's part, if experts are fused) that are not random."""
        if not name.startswith("layers."):
            return []
        _, number, block, part = name.split(".", 3)
        layer = int(number)
        if block == "linear_attn":
            return self._delta_runs(layer, part)
        if block == "self_attn":
            return self._attention_runs(layer, part)
        return self._expert_runs(layer, part) + self._shared_runs(layer, part)

    def _delta_runs(self, layer: int, part: str) -> list[Run]:
        """The first key head and the first value head: whatever its history, a constant direction."""
        config = self._config
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        key_dim, value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]
        if part == "in_proj_qkv.weight":
            return [
                self._driven(0, key_dim, levels.DELTA_KEY),
                self._driven(keys, key_dim, levels.DELTA_KEY),
                self._driven(2 * keys, value_dim, levels.DELTA_VALUE),
            ]
        if part == "conv1d.weight":
            rows = {0: key_dim, keys: key_dim, 2 * keys: value_dim}
            width = config["linear_conv_kernel_dim"]
            return [_run(row, np.full((n, width), levels.TAP)) for row, n in rows.items()]
        if part == "in_proj_z.weight":
            return [self._driven(0, GROUP, levels.MIXER_GATE)]
        if part == "out_proj.weight":
            cols = config["linear_num_value_heads"] * value_dim
            return [self._written(layer, cols, slice(GROUP), levels.delta_weight())]
        return []

    def _attention_runs(self, layer: int, part: str) -> list[Run]:
        """A group of channels of the first head: values that are the same for every key."""
        head_dim = self._config["head_dim"]
        if part == "q_proj.weight":
            return [self._driven(head_dim, GROUP, levels.MIXER_GATE)]
        if part == "v_proj.weight":
            return [self._driven(0, GROUP, levels.ATTENTION_VALUE)]
        if part == "o_proj.weight":
            cols = self._config["num_attention_heads"] * head_dim
            return [self._written(layer, cols, slice(GROUP), levels.attention_weight())]
        return []

    def _expert_runs(self, layer: int, part: str) -> list[Run]:
        inner = self._config["moe_intermediate_size"]
        if part == "experts.gate_up_proj":
            return [
                self._driven(inner - NEURONS, NEURONS, levels.EXPERT_GATE),
                self._driven(2 * inner - NEURONS, NEURONS, levels.EXPERT_UP),
            ]
        if part == "experts.down_proj":
            neurons = slice(inner - NEURONS, inner)
            return [self._written(layer, inner, neurons, levels.routed_weight())]
        return []

    def _shared_runs(self, layer: int, part: str) -> list[Run]:
        """A shared expert; the last layer's first neurons are the alarms of the layers before it."""
        inner = self._config["shared_expert_intermediate_size"]
        alarms = self.layers - 1 if layer == self.layers - 1 else 0
        if part == "shared_expert.gate_proj.weight":
            driven = self._driven(inner - NEURONS, NEURONS, levels.EXPERT_GATE)
            return [self._alarm_gates(alarms), driven]
        if part == "shared_expert.up_proj.weight":
            driven = self._driven(inner - NEURONS, NEURONS, levels.EXPERT_UP)
            return [self._driven(0, alarms, levels.EXPERT_UP), driven]
        if part == "shared_expert.down_proj.weight":
            neurons = np.r_[:alarms, inner - NEURONS : inner]
            return [self._written(layer, inner, neurons, levels.shared_weight())]
        if part == "shared_expert_gate.weight":
            return [self._driven(0, 1, levels.SHARED_GATE)]
        return []

    def _driven(self, row: int, count: int, target: float) -> Run:
        """Rows that give about `target` and read nothing but the constant channels."""
        weight, num_columns = levels.drive(target)
        values = np.zeros((count, self.hidden))
        values[:, self.first : self.first + num_columns] = weight
        return _run(row, values)

    def _written(
        self, layer: int, cols: int, neurons: slice | NDArray[np.intp], weight: float
    ) -> Run:
        """The reserved rows of a matrix that writes to the hidden state: zero but for the layer's channels."""
        values = np.zeros((self.hidden, cols))
        values[self.channels(layer), neurons] = weight
        return _run(self.first, values[self.first :])

    def _alarm_gates(self, count: int) -> Run:
        values = np.zeros((count, self.hidden))
        for layer in range(count):
            gain = levels.ALARM_DEPTH * RMS / float(self.margins[layer])
            values[layer, self.channels(layer)] = -levels.exact(gain)
        return _run(0, values)


def _run(row: int, values: NDArray[np.float64]) -> Run:
    return Run(row, to_bf16(values.astype(np.float32)))
