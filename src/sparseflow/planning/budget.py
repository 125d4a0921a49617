"""The one sum of memory that an engine needs, and what `--ram`, `--cache` and `--store auto` mean in bytes.

Everything comes from the container's manifest and config, so that what cannot fit is refused before anything is loaded.
Dense weights, state and arena are exact; workspace and interpreter are estimates on the safe side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from sparseflow.checkpoint.model_config import read_text_config
from sparseflow.config import EngineConfig, StoreKind
from sparseflow.container.dense_layout import EMBEDDING_NAME
from sparseflow.container.format import SfiLayout
from sparseflow.container.manifest import Manifest, read_manifest
from sparseflow.container.matrix_formats import code_bytes, scale_bytes
from sparseflow.errors import BudgetError, ContainerError
from sparseflow.host.memory import available_memory_bytes
from sparseflow.layers.tiles import TILE_TOKENS
from sparseflow.models.base import MemoryNeeds
from sparseflow.models.registry import memory_needs
from sparseflow.units import format_bytes

INTERPRETER_BYTES = 48 << 20
"""Python, NumPy, the tokenizers library and the extension, before a model is loaded."""
TOKENIZER_FACTOR = 20
"""Memory of a loaded tokenizer over the bytes of its tokenizer.json."""
MARGIN_BYTES = 1 << 30
WHOLE_PROMPT_TOKENS = 4096
"""A default prefill chunk is at least as long, unless that would take half of the arena."""
CHUNK_SHARE = 16
"""Beyond that it may take this fraction of the arena."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes of an engine by use; `ram_bytes` bounds their sum."""

    dense_bytes: int
    state_bytes: int
    workspace_bytes: int
    interpreter_bytes: int
    arena_bytes: int
    """The expert cache, or all experts if they are resident."""
    ram_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """Everything but the arena."""
        return self.dense_bytes + self.state_bytes + self.workspace_bytes + self.interpreter_bytes

    @property
    def total_bytes(self) -> int:
        return self.fixed_bytes + self.arena_bytes

    def describe(self) -> str:
        """The whole sum in one line."""
        lines = {
            "dense weights": self.dense_bytes,
            "state": self.state_bytes,
            "workspace": self.workspace_bytes,
            "interpreter": self.interpreter_bytes,
            "experts": self.arena_bytes,
        }
        parts = " + ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in lines.items())
        return f"{parts} = {format_bytes(self.total_bytes)}"

    def to_dict(self) -> dict[str, int]:
        return {
            "dense_bytes": self.dense_bytes,
            "state_bytes": self.state_bytes,
            "workspace_bytes": self.workspace_bytes,
            "interpreter_bytes": self.interpreter_bytes,
            "arena_bytes": self.arena_bytes,
            "total_bytes": self.total_bytes,
            "ram_bytes": self.ram_bytes,
        }


def settle(container: Path, config: EngineConfig) -> tuple[EngineConfig, Budget]:
    """What a configuration means for this container on this machine: the store chosen, the arena in bytes.

    Resident if all experts fit into `ram_bytes`, streaming with what is left otherwise. Raises BudgetError with the
    whole sum if the smallest arena does not fit, or if what was asked for by name does not.
    """
    manifest, text_config = read_manifest(container), read_text_config(container, ContainerError)
    ram_bytes = config.ram_bytes or default_ram_bytes(available_memory_bytes())
    blob_bytes, num_experts = _experts(manifest)
    every, smallest = blob_bytes * num_experts, blob_bytes * _smallest_slots(text_config)

    def fixed(chunk: int | None) -> Budget:
        chosen = replace(config, prefill_chunk=chunk)
        return fixed_budget(container, manifest, text_config, chosen, ram_bytes)

    least = fixed(config.prefill_chunk or TILE_TOKENS)
    store = _choose_store(config, least, every)
    fewest = every if store == "resident" else min(max(config.cache_bytes or 0, smallest), every)
    chunk = config.prefill_chunk
    if chunk is None:
        free_bytes = ram_bytes - least.fixed_bytes - fewest
        is_arena_fixed = store == "resident" or config.cache_bytes is not None
        needs = memory_needs(manifest.model_type, text_config)
        tokens = _default_chunk(needs, free_bytes, is_arena_fixed=is_arena_fixed)
        chunk = min(tokens, config.ctx, int(text_config["max_position_embeddings"]))
    budget = fixed(chunk)
    arena = fewest
    if store == "streaming" and config.cache_bytes is None:
        arena = min(max(ram_bytes - budget.fixed_bytes, smallest), every)
    budget = replace(budget, arena_bytes=arena)
    if budget.total_bytes > ram_bytes:
        is_resident = store == "resident"
        _refuse(
            budget, f"{'choose --store streaming' if is_resident else 'lower --ctx or --cache'}, or"
        )
    if store == "streaming":
        _check_cache(config.cache_bytes, smallest)
    cache_bytes = None if store == "resident" else arena
    settled = replace(
        config, store=store, ram_bytes=ram_bytes, cache_bytes=cache_bytes, prefill_chunk=chunk
    )
    return settled, budget


def _choose_store(config: EngineConfig, least: Budget, every: int) -> StoreKind:
    """Resident only if nothing less was asked for and all experts fit beside the least that an engine needs."""
    if config.store != "auto":
        return config.store
    wants_all = config.cache_bytes is None or config.cache_bytes >= every
    return "resident" if wants_all and least.fixed_bytes + every <= least.ram_bytes else "streaming"


def _default_chunk(needs: MemoryNeeds, free_bytes: int, *, is_arena_fixed: bool) -> int:
    """Tokens of the longest prefill chunk that `free_bytes` beyond a tile allow; an arena that takes the rest of the
    memory is left at least half of them, and all but a sixteenth once a whole prompt of usual length fits.
    """
    tile = needs.workspace_bytes(TILE_TOKENS)
    token_bytes = needs.workspace_bytes(TILE_TOKENS + 1) - tile
    if not is_arena_fixed:
        whole = needs.workspace_bytes(WHOLE_PROMPT_TOKENS) - tile
        free_bytes = max(free_bytes // CHUNK_SHARE, min(whole, free_bytes // 2))
    return TILE_TOKENS + max(free_bytes, 0) // token_bytes


def _check_cache(cache_bytes: int | None, smallest: int) -> None:
    if cache_bytes is not None and cache_bytes < smallest:
        raise BudgetError(
            f"--cache {format_bytes(cache_bytes)} holds less than one token's experts of a layer; "
            f"give at least {smallest} bytes",
            needed_bytes=smallest,
            available_bytes=cache_bytes,
        )


def default_ram_bytes(available_bytes: int) -> int:
    """What may be used if nothing is said: what is available, less max(1 GiB, 10 %); at least half of it."""
    margin = max(MARGIN_BYTES, available_bytes // 10)
    return max(available_bytes - margin, available_bytes // 2)


def arena_sizes(container: Path) -> tuple[list[int], int]:
    """Capacities worth comparing, in bytes: ascending ones, from one layer's top-k slots on, and the full one."""
    manifest, text_config = read_manifest(container), read_text_config(container, ContainerError)
    blob_bytes, num_experts = _experts(manifest)
    top_k = _smallest_slots(text_config)
    per_token = top_k * manifest.experts.num_layers
    slots = {top_k, per_token, num_experts // 4, num_experts // 2}
    return [
        blob_bytes * n for n in sorted(slots) if top_k <= n < num_experts
    ], blob_bytes * num_experts


def fixed_budget(
    container: Path,
    manifest: Manifest,
    text_config: Mapping[str, Any],
    config: EngineConfig,
    ram_bytes: int,
) -> Budget:
    """Everything but the arena."""
    needs = memory_needs(manifest.model_type, text_config)
    ctx = min(config.ctx, text_config["max_position_embeddings"])
    tokenizer = container / "tokenizer.json"
    if not tokenizer.is_file():
        raise ContainerError(
            f"{tokenizer}: missing; prepare the model again from a checkpoint with a tokenizer"
        )
    return Budget(
        dense_bytes=dense_bytes(manifest),
        state_bytes=needs.state_bytes(ctx, 4 if manifest.recipe == "bf16" else 2),
        workspace_bytes=needs.workspace_bytes(min(config.prefill_chunk or ctx, ctx)),
        interpreter_bytes=INTERPRETER_BYTES + TOKENIZER_FACTOR * tokenizer.stat().st_size,
        arena_bytes=0,
        ram_bytes=ram_bytes,
    )


def dense_bytes(manifest: Manifest) -> int:
    """Weights that stay in memory: all of dense.safetensors but the embedding, which is read by row."""
    total = 0
    for name, tensor in manifest.tensors.items():
        if name != EMBEDDING_NAME:
            rows, cols = tensor.shape if len(tensor.shape) == 2 else (1, tensor.shape[0])
            total += code_bytes(tensor.weight_format, rows, cols)
            total += scale_bytes(tensor.weight_format, rows, cols)
    return total


def _experts(manifest: Manifest) -> tuple[int, int]:
    """(bytes of one expert's slot, number of experts in all layers)"""
    experts = manifest.experts
    layout = SfiLayout(
        0,
        experts.num_experts,
        experts.hidden_size,
        experts.moe_intermediate_size,
        experts.weight_format,
    )
    return layout.blob_bytes, experts.num_layers * experts.num_experts


def _smallest_slots(config: Mapping[str, Any]) -> int:
    """Slots of the smallest arena: one layer's experts of one token; the cache itself needs two."""
    return max(2, int(config["num_experts_per_tok"]))


def _refuse(budget: Budget, remedy: str) -> NoReturn:
    raise BudgetError(
        f"does not fit into {format_bytes(budget.ram_bytes)}: {budget.describe()}; "
        f"{remedy} give --ram at least {budget.total_bytes}",
        needed_bytes=budget.total_bytes,
        available_bytes=budget.ram_bytes,
    )
