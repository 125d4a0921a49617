"""Where the weights of one routed expert lie: three byte ranges, in fused tensors or in tensors of
their own.

Fused layers hold gate and up of all experts in one tensor [E, 2I, H] (gate first) and down in
another [E, H, I], often in different shards. Unfused layers hold a tensor for each expert and
projection.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparseflow.checkpoint.checkpoint import Checkpoint, CheckpointTensor
from sparseflow.checkpoint.header import DTYPE_BYTES
from sparseflow.checkpoint.tensor_classes import TensorRow
from sparseflow.errors import CheckpointError, ConfigError

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class ExpertSlice:
    """The contiguous bytes of one projection of one expert."""

    projection: str
    tensor: str
    """The tensor that it is a part of, as the publisher named it."""
    file: Path
    offset: int
    """From the beginning of the file."""
    nbytes: int
    dtype: str
    shape: tuple[int, int]
    """[rows, cols]: outputs, inputs."""


class ExpertSlices:
    """The slices of every expert of a checkpoint. Creating it checks that all are there, shaped and
    typed alike.

    Raises CheckpointError naming what is missing or differs.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        dims = checkpoint.dimensions
        self.num_layers = len(checkpoint.config["layer_types"])
        self.num_experts = dims["num_experts"]
        self.hidden_size = dims["hidden_size"]
        self.moe_intermediate_size = dims["moe_intermediate_size"]
        self._fused = [self._find_layout(layer) for layer in range(self.num_layers)]
        first = self.get(0, 0)[0]
        self.dtype = first.dtype
        for layer in range(self.num_layers):
            self._check_layer(layer, first)

    def get(self, layer: int, expert: int) -> tuple[ExpertSlice, ExpertSlice, ExpertSlice]:
        """gate, up and down of one expert. Raises ConfigError if there is no such layer or expert."""
        if not 0 <= layer < self.num_layers or not 0 <= expert < self.num_experts:
            raise ConfigError(
                f"no expert {layer}:{expert}; layers are 0 to {self.num_layers - 1},"
                f" experts 0 to {self.num_experts - 1}"
            )
        inner, hidden = self.moe_intermediate_size, self.hidden_size
        if not self._fused[layer]:
            tensors = [
                self._tensor(row, layer, expert) for row in self._checkpoint.family.unfused_experts
            ]
            gate, up, down = (
                _slice(name, tensor, 0, (tensor.shape[0], tensor.shape[1]))
                for name, tensor in zip(PROJECTIONS, tensors, strict=True)
            )
            return gate, up, down
        gate_up, fused_down = (
            self._tensor(row, layer) for row in self._checkpoint.family.fused_experts
        )
        part = gate_up.nbytes // self.num_experts // 2
        return (
            _slice("gate_proj", gate_up, 2 * expert * part, (inner, hidden)),
            _slice("up_proj", gate_up, (2 * expert + 1) * part, (inner, hidden)),
            _slice(
                "down_proj",
                fused_down,
                expert * (fused_down.nbytes // self.num_experts),
                (hidden, inner),
            ),
        )

    def _find_layout(self, layer: int) -> bool:
        """Whether the layer is fused. A layer that is both is refused."""
        family, checkpoint = self._checkpoint.family, self._checkpoint
        fused = [checkpoint.find(_name(row, layer)) for row in family.fused_experts]
        unfused = [checkpoint.find(_name(row, layer, 0)) for row in family.unfused_experts]
        if any(fused) and any(unfused):
            raise CheckpointError(
                f"{checkpoint.path}: layer {layer} has experts both fused and one by one"
            )
        return any(fused)

    def _tensor(self, row: TensorRow, layer: int, expert: int | None = None) -> CheckpointTensor:
        shape = tuple(self._checkpoint.dimensions[dim] for dim in row.shape)
        return self._checkpoint.get(_name(row, layer, expert), shape)

    def _check_layer(self, layer: int, first: ExpertSlice) -> None:
        for expert in (0,) if self._fused[layer] else range(self.num_experts):
            for part in self.get(layer, expert):
                if part.dtype != first.dtype:
                    raise CheckpointError(
                        f"{part.file}: tensor {part.tensor!r} is {part.dtype}, but"
                        f" {first.tensor!r} is {first.dtype};"
                        " experts must be of one dtype"
                    )


def _name(row: TensorRow, layer: int, expert: int | None = None) -> str:
    return row.name.replace("{layer}", str(layer)).replace("{expert}", str(expert))


def _slice(
    projection: str, tensor: CheckpointTensor, begin: int, shape: tuple[int, int]
) -> ExpertSlice:
    itemsize = DTYPE_BYTES[tensor.dtype]
    nbytes = shape[0] * shape[1] * itemsize
    return ExpertSlice(
        projection, tensor.name, tensor.file, tensor.offset + begin, nbytes, tensor.dtype, shape
    )
