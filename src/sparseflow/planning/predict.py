"""How fast an engine will be: what its bytes and products take on a machine whose speeds are known.

Decode is bound by bytes (planning/floor.py has the floor; here the kernels' own rates stand for the memory's), prefill
by products and by one pass over the experts. `bench --budgets` prints each prediction beside what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, comb
from typing import Any

from sparseflow.config import EngineConfig
from sparseflow.container.dense_layout import EMBEDDING_NAME, entries_of
from sparseflow.planning.budget import Budget
from sparseflow.planning.floor import HEAD_NAME, SHARED_EXPERT, shape_token_bytes
from sparseflow.planning.machine import Machine
from sparseflow.planning.model_shape import ModelShape
from sparseflow.planning.routing import miss_rate, touched_share

LAYER_SECONDS = 150e-6
"""Of a step in each layer, beside bytes: calls, barriers between threads, small vectors. 60 to 330 us measured."""
EXPERT_SHARE = 0.85
"""Of the single-row rate that experts reach: their matrices are small, and each begins with a barrier."""
ATTENTION_SHARE = 0.38
"""Of the float32 rate that a step's attention reaches: one query a head against float16 keys and values."""
PREFILL_SHARE = 0.82
"""Of the rates of many rows that a whole prompt reaches: tiles, gathering rows, norms, the delta rule's order."""
READ_SECONDS = 250e-6
"""Of each wait for reads, beside the disk's time: waking up, checking the hash of what arrived last."""
START_SECONDS = 0.4
"""Interpreter, imports, headers."""
TOKENIZER_RATE = 12e6
"""Bytes of tokenizer.json a second."""
LOAD_SHARE = 0.9
"""Of the disk's speed that loading reaches."""
PREFETCH_SHARE = 0.85
"""Of the disk's speed that a pass over a prompt's experts reaches."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """For one configuration on one machine."""

    kept_share: float
    """Of each layer's experts that the cache keeps: 1 if they are resident."""
    hit_rate: float
    """Of decode's lookups, in the long run."""
    disk_bytes_per_token: float
    decode_tokens_per_second: float
    prefill_tokens_per_second: float
    load_seconds: float
    first_token_seconds: float
    """From the start of the program to the first token after the prompt."""
    prompt_tokens: int


def predict(
    shape: ModelShape,
    config: EngineConfig,
    budget: Budget,
    machine: Machine,
    prompt_tokens: int,
    new_tokens: int = 256,
    heat: Any = None,
) -> Prediction:
    """config, budget: settled. Decode is predicted for the middle of `new_tokens` after the prompt. heat: of earlier
    runs of this container (planning/locality.py); None: hit rates are those of recorded routes.
    """
    slots = _slots(shape, config, budget)
    kept = slots.kept / shape.num_experts
    is_resident = config.store == "resident"
    misses = 0.0 if is_resident else miss_rate(kept, _experts_share(shape))
    if heat is not None and misses > 0:
        # Here, since most plans have no history and need no numerical library.
        from sparseflow.planning.locality import locality

        misses = min(1.0, misses * locality(heat, shape.experts_per_token))
    position = min(config.ctx, prompt_tokens + new_tokens // 2)
    step = _step_seconds(shape, machine, misses, slots.depth, position)
    prefill = _prefill_seconds(shape, config, machine, slots, prompt_tokens)
    loaded = shape.dense_bytes + (shape.experts_bytes if is_resident else 0)
    load = START_SECONDS + shape.tokenizer_bytes / TOKENIZER_RATE
    load += loaded / (machine.disk * LOAD_SHARE)
    lookups = shape.num_layers * shape.experts_per_token
    return Prediction(
        kept_share=kept,
        hit_rate=1 - misses,
        disk_bytes_per_token=misses * lookups * shape.blob_bytes,
        decode_tokens_per_second=1 / step,
        prefill_tokens_per_second=prompt_tokens / prefill,
        load_seconds=load,
        first_token_seconds=load + prefill,
        prompt_tokens=prompt_tokens,
    )


@dataclass(frozen=True, slots=True)
class _Slots:
    """How the cache shares an arena out (docs/expert_cache.md, "Shares")."""

    kept: int
    depth: int
    """Reads in flight."""


def _slots(shape: ModelShape, config: EngineConfig, budget: Budget) -> _Slots:
    slots = budget.arena_bytes // shape.blob_bytes
    if config.store == "resident" or slots >= shape.num_experts:
        return _Slots(shape.num_experts, config.queue_depth)
    lease = min(shape.layout.num_experts, max(8, 2 * shape.experts_per_token))
    transient = lease + config.queue_depth
    if slots - transient >= shape.num_layers * shape.experts_per_token:
        return _Slots(slots - transient, config.queue_depth)
    transient = min(transient, (slots + 1) // 2)
    return _Slots(slots - transient, max(1, min(config.queue_depth, transient // 3)))


def kept_share(shape: ModelShape, config: EngineConfig, budget: Budget) -> float:
    """Share of each layer's experts that are kept, transient slots left out."""
    return _slots(shape, config, budget).kept / shape.num_experts


def prepare_seconds(shape: ModelShape, source_bytes: int, machine: Machine, threads: int) -> float:
    """Of `prepare`: reading, converting on all cores, writing, hashing what was written."""
    converting = source_bytes / (CONVERT_RATE.get(shape.recipe, CONVERT_RATE["int4"]) * threads)
    moving = (source_bytes + 2 * shape.file_bytes) / machine.disk
    return START_SECONDS + max(converting, moving)


CONVERT_RATE = {"bf16": 900e6, "int8": 600e6, "int4": 380e6, "int4-small": 380e6}
"""Bytes of a BF16 checkpoint a second and core (docs/results.md, M1, less on older CPUs)."""


def _experts_share(shape: ModelShape) -> float:
    return shape.experts_per_token / shape.layout.num_experts


def _step_seconds(
    shape: ModelShape, machine: Machine, misses: float, depth: int, position: int
) -> float:
    """Of one decoded token whose lookups miss with that probability, each by itself."""
    needed = shape_token_bytes(shape)
    expert = needed.expert / machine.single_rate(shape.layout.weight_format) / EXPERT_SHARE
    shared = _dense_seconds(shape, machine, is_shared=True)
    dense = _dense_seconds(shape, machine, is_shared=False)
    total = dense + needed.delta_state / machine.memory + shape.num_layers * LAYER_SECONDS
    total += _attention_macs(shape, position) / (machine.floats * ATTENTION_SHARE)
    k = needed.experts_per_token
    shared /= shape.num_layers * EXPERT_SHARE
    for reads in range(k + 1):
        chance = comb(k, reads) * misses**reads * (1 - misses) ** (k - reads)
        computed = (k - reads) * expert + shared
        if reads:
            waiting = READ_SECONDS + _read_seconds(shape, machine, reads, depth)
            computed = max(computed, waiting) + expert
        total += shape.num_layers * chance * computed
    return total


def _read_seconds(shape: ModelShape, machine: Machine, reads: float, depth: int) -> float:
    """Of so many experts, `depth` at a time: what one read alone takes beyond the disk's speed is shared by those in
    flight together.
    """
    alone = machine.first_read_seconds * max(1.0, reads / depth)
    return alone + reads * shape.blob_bytes / machine.disk


def _attention_macs(shape: ModelShape, position: int) -> int:
    """What grows with the position; the recurrent part is bound by its bytes."""
    return shape.needs.float_macs(position) - shape.needs.float_macs(0)


def _dense_seconds(shape: ModelShape, machine: Machine, *, is_shared: bool) -> float:
    """Of one row through the shared experts, or through all that is neither them nor a routed expert."""
    return sum(
        entry.nbytes / machine.single_rate(record.weight_format)
        for name, record in shape.tensors.items()
        if name != EMBEDDING_NAME and (SHARED_EXPERT in name) == is_shared
        for entry in entries_of(name, record)
    )


def _prefill_seconds(
    shape: ModelShape, config: EngineConfig, machine: Machine, slots: _Slots, tokens: int
) -> float:
    """Of a prompt in chunks: mixers compute alone, experts while others are read."""
    chunk = min(config.prefill_chunk or tokens, tokens)
    mixers = _mixer_seconds(shape, machine, tokens) / PREFILL_SHARE
    experts = _expert_seconds(shape, machine, tokens, chunk) / PREFILL_SHARE
    if config.store == "resident":
        return mixers + experts
    chunks = ceil(tokens / chunk)
    touched = touched_share(chunk, _experts_share(shape)) * shape.num_experts
    reads = touched + (chunks - 1) * touched * (1 - slots.kept / shape.num_experts)
    reading = _read_seconds(shape, machine, reads, slots.depth) / PREFETCH_SHARE
    reading += chunks * shape.num_layers * READ_SECONDS
    return mixers + max(experts, reading)


def _mixer_seconds(shape: ModelShape, machine: Machine, tokens: int) -> float:
    """Everything that is not a routed expert: matrices of each token, float32 work, and the head once."""
    seconds = 0.0
    for name, record in shape.tensors.items():
        if len(record.shape) != 2 or name == EMBEDDING_NAME:
            continue
        macs = record.shape[0] * record.shape[1] * (1 if name == HEAD_NAME else tokens)
        seconds += macs / machine.many_rate(record.weight_format)
    middle = shape.needs.float_macs(tokens // 2)
    return seconds + tokens * middle / machine.floats


def _expert_seconds(shape: ModelShape, machine: Machine, tokens: int, chunk: int) -> float:
    """Few rows an expert multiply slower: each expert's weights are read for them all the same."""
    weights = sum(rows * cols for rows, cols in shape.layout.shapes)
    macs = tokens * shape.num_layers * shape.experts_per_token * weights
    full = macs / machine.many_rate(shape.layout.weight_format)
    touched = touched_share(chunk, _experts_share(shape)) * shape.num_experts
    passes = ceil(tokens / chunk) * touched * shape.layout.payload_bytes
    return full + passes / machine.single_rate(shape.layout.weight_format)
