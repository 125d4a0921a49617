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
from sparseflow.container.manifest import Manifest
from sparseflow.container.reader import Container

_LAYER = re.compile(r"layers\.(\d+)\.")
_SHARED = ".mlp.shared_expert"
_HEAD = "lm_head.weight"


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
    """From the manifest and config of a container. Raises what opening a container raises."""
    with Container.open(container) as opened:
        manifest, config, layout = opened.manifest, opened.config, opened.layouts[0]
    num_layers = manifest.experts.num_layers
    rest, shared, outside = [0] * num_layers, [0] * num_layers, 0
    for name, record in manifest.tensors.items():
        nbytes = sum(entry.nbytes for entry in entries_of(name, record))
        found = _LAYER.match(name)
        if name == EMBEDDING_NAME:
            continue
        if found is None:
            outside += nbytes
        elif _SHARED in name:
            shared[int(found[1])] += nbytes
        else:
            rest[int(found[1])] += nbytes
    state = _delta_state_bytes(config)
    for layer, kind in enumerate(config.get("layer_types", [])):
        rest[layer] += state if kind == "linear_attention" else 0
    return TokenBytes(
        layer_rest=tuple(rest),
        layer_shared=tuple(shared),
        outside=outside,
        expert=layout.payload_bytes,
        blob=layout.blob_bytes,
        experts_per_token=int(config["num_experts_per_tok"]),
        delta_state=state * config.get("layer_types", []).count("linear_attention"),
        kv_per_position=_kv_bytes(config, 4 if manifest.recipe == "bf16" else 2),
    )


def _delta_state_bytes(config: dict[str, Any]) -> int:
    """Of one layer, read and written; 0 for a family without."""
    if "linear_num_value_heads" not in config:
        return 0
    values = config["linear_key_head_dim"] * config["linear_value_head_dim"]
    return 2 * 4 * int(config["linear_num_value_heads"] * values)


def _kv_bytes(config: dict[str, Any], itemsize: int) -> int:
    kinds = config.get("layer_types", ["full_attention"] * config["num_hidden_layers"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    row = 2 * config["num_key_value_heads"] * head_dim * itemsize
    return int(row * kinds.count("full_attention"))


def token_macs(manifest: Manifest, experts_per_token: int) -> int:
    """Multiply-accumulates of one prompt token, the head aside: it is computed for the last one alone."""
    experts = manifest.experts
    routed = 3 * experts.hidden_size * experts.moe_intermediate_size
    total = experts.num_layers * experts_per_token * routed
    for name, record in manifest.tensors.items():
        is_matrix = len(record.shape) == 2 and name not in (EMBEDDING_NAME, _HEAD)
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
