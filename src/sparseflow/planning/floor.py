"""The floor of a step: the bytes that a token needs, and the time that the machine's own speeds would take for them.

Everything is counted from the container's manifest, so it holds for every recipe. Decode at batch 1 is bound by bytes,
prefill by multiply-accumulates. A share above 1 means that something was measured or counted wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparseflow.container.dense_layout import EMBEDDING_NAME, entries_of
from sparseflow.planning.model_shape import ModelShape, container_shape

_LAYER = re.compile(r"layers\.(\d+)\.")
SHARED_EXPERT = ".mlp.shared_expert"
HEAD_NAME = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Bytes of memory that one decoded token reads (and writes, for the delta state)."""

    layer_rest: tuple[int, ...]
    """Of each layer, all that is no expert: mixer, norms, router, delta state read and written."""
    layer_shared: tuple[int, ...]
    """Of each layer's shared expert."""
    outside: int
    """Of what is in no layer: head, last norm."""
    expert: int
    """Of one routed expert."""
    blob: int
    """Of one routed expert on disk, padding included."""
    experts_per_token: int
    """Chosen in each layer."""
    delta_state: int
    """Part of layer_rest: of all layers, read and written."""
    kv_per_position: int
    """Keys and values of one earlier token, over all layers. Not part of the sums: short contexts are measured."""

    @property
    def num_layers(self) -> int:
        return len(self.layer_rest)

    @property
    def resident(self) -> int:
        """All of one token's bytes, every expert in memory."""
        experts = self.num_layers * self.experts_per_token * self.expert
        return sum(self.layer_rest) + sum(self.layer_shared) + self.outside + experts

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "resident": self.resident}


def token_bytes(container: Path) -> TokenBytes:
    """Of a container. Raises what reading its manifest and config raises."""
    return shape_token_bytes(container_shape(container))


def shape_token_bytes(shape: ModelShape) -> TokenBytes:
    """From a model's shape. Every step reads and writes the state that does not grow; it is spread over the layers
    evenly, since the sums alone count.
    """
    num_layers = shape.num_layers
    state = shape.needs.state_bytes(0, shape.kv_item_bytes)
    rest = [2 * state // num_layers] * num_layers
    shared, outside = [0] * num_layers, 0
    for name, record in shape.tensors.items():
        nbytes = sum(entry.nbytes for entry in entries_of(name, record))
        found = _LAYER.match(name)
        if name == EMBEDDING_NAME:
            continue
        if found is None:
            outside += nbytes
        elif SHARED_EXPERT in name:
            shared[int(found[1])] += nbytes
        else:
            rest[int(found[1])] += nbytes
    return TokenBytes(
        layer_rest=tuple(rest),
        layer_shared=tuple(shared),
        outside=outside,
        expert=shape.layout.payload_bytes,
        blob=shape.blob_bytes,
        experts_per_token=shape.experts_per_token,
        delta_state=2 * state // num_layers * num_layers,
        kv_per_position=shape.needs.state_bytes(1, shape.kv_item_bytes) - state,
    )


def token_macs(shape: ModelShape) -> int:
    """Multiply-accumulates of one prompt token with weights, the head aside: it is computed for the last one alone."""
    routed = sum(rows * cols for rows, cols in shape.layout.shapes)
    total = shape.num_layers * shape.experts_per_token * routed
    for name, record in shape.tensors.items():
        is_matrix = len(record.shape) == 2 and name not in (EMBEDDING_NAME, HEAD_NAME)
        total += record.shape[0] * record.shape[1] if is_matrix else 0
    return total


def resident_floor(needed: TokenBytes, memory_speed: float) -> float:
    """Seconds of a step whose experts are all in memory."""
    return needed.resident / memory_speed


def overlap_floor(
    needed: TokenBytes, layer_reads: Sequence[int], memory_speed: float, disk_speed: float
) -> float:
    """Seconds of a step whose layers read `layer_reads` experts each, on demand.

    Reads start when the router has chosen, so in each layer the larger of (hits and shared expert, reads) passes, then
    the last expert to arrive is computed, and the rest of the layer.
    """
    total = needed.outside / memory_speed
    for rest, shared, reads in zip(
        needed.layer_rest, needed.layer_shared, layer_reads, strict=True
    ):
        hits = max(0, needed.experts_per_token - reads)
        computed = (hits * needed.expert + shared) / memory_speed
        total += rest / memory_speed
        if reads == 0:
            total += computed
        else:
            total += max(computed, reads * needed.blob / disk_speed)
            total += needed.expert / memory_speed
    return total


def perfect_floor(
    needed: TokenBytes, layer_reads: Sequence[int], memory_speed: float, disk_speed: float
) -> float:
    """Seconds of the same step if the disk never waited for the router: what prefetching could reach at best."""
    disk_bytes = sum(layer_reads) * needed.blob
    return max((needed.resident + disk_bytes) / memory_speed, disk_bytes / disk_speed)


def prefill_floor(macs: int, tokens: int, int8_rate: float) -> float:
    """Seconds for the arithmetic of a prompt."""
    return macs * tokens / int8_rate


def largest_cache_bytes(root: Path = Path("/")) -> int:
    """Of the CPU's last-level cache; 0 if the system does not tell."""
    sizes = [0]
    for size in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = size.read_text(encoding="ascii").strip()
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * unit)
    return max(sizes)


def doubt(needed: TokenBytes, share: float, cache_bytes: int) -> str:
    """Why a share of the floor means nothing; empty if it does."""
    if needed.resident < 4 * cache_bytes:
        return "the model fits the CPU's cache, so memory is not its limit"
    if share > 1:
        return "faster than the floor: a mistake in the measurement"
    return ""
