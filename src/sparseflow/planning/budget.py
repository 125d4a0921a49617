"""The one sum of memory that an engine needs, and what `--ram`, `--cache` and `--store auto` mean in bytes.

Everything comes from a model's shape, so that what cannot fit is refused before anything is loaded, and the floor is
the same sum wherever it is taken. `bench --budgets` holds it against what the kernel counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparseflow.config import EngineConfig, StoreKind
from sparseflow.errors import BudgetError
from sparseflow.host.memory import MemoryFacts, memory_facts
from sparseflow.layers.tiles import TILE_TOKENS
from sparseflow.models.memory_needs import MemoryNeeds
from sparseflow.planning.model_shape import ModelShape, container_shape
from sparseflow.units import format_bytes

INTERPRETER_BYTES = 25 << 20
"""Anonymous memory of Python, NumPy, the tokenizers library and the extension, before a model is loaded: 22 to 26 MiB
measured."""
TOKENIZER_FACTOR = 20
"""Memory of a loaded tokenizer over the bytes of its tokenizer.json."""
SYSTEM_BYTES = 32 << 20
"""Charged to a control group beside anonymous memory: programs and libraries (22 MiB), thread stacks in the kernel."""
PAGE_TABLE_SHARE = 512
"""Page tables take 8 bytes for each 4 KiB."""
PAGE_BYTES = 4096
MARGIN_BYTES = 1 << 30
WHOLE_PROMPT_TOKENS = 4096
"""A default prefill chunk is at least as long, unless that would take half of the arena."""
CHUNK_SHARE = 16
"""Beyond that it may take this fraction of the arena."""
SHORTEST_CTX = 512
"""A shorter context is never proposed."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes of an engine by use; `ram_bytes` bounds their sum."""

    dense_bytes: int
    state_bytes: int
    """Of one sequence at full context."""
    workspace_bytes: int
    tokenizer_bytes: int
    interpreter_bytes: int
    system_bytes: int
    """Programs and libraries mapped from files, and the kernel's page tables: in the sum, but not anonymous."""
    arena_bytes: int
    """The expert cache, or all experts if they are resident."""
    ram_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """Everything but the arena."""
        return self.total_bytes - self.arena_bytes

    @property
    def anonymous_bytes(self) -> int:
        """What the kernel will count as anonymous memory at the peak: all but the system's part."""
        return self.total_bytes - self.system_bytes

    @property
    def total_bytes(self) -> int:
        return sum(self.lines().values())

    def lines(self) -> dict[str, int]:
        """The sum, line by line, in words."""
        return {
            "dense weights": self.dense_bytes,
            "state": self.state_bytes,
            "workspace": self.workspace_bytes,
            "tokenizer": self.tokenizer_bytes,
            "interpreter": self.interpreter_bytes,
            "system": self.system_bytes,
            "experts": self.arena_bytes,
        }

    def describe(self) -> str:
        """The whole sum in one line."""
        parts = " + ".join(
            f"{name} {format_bytes(nbytes)}" for name, nbytes in self.lines().items()
        )
        return f"{parts} = {format_bytes(self.total_bytes)}"

    def with_arena(self, arena_bytes: int) -> Budget:
        """With the page tables that so large an arena takes."""
        anonymous = self.anonymous_bytes - self.arena_bytes + arena_bytes
        system = SYSTEM_BYTES + anonymous // PAGE_TABLE_SHARE
        return replace(self, arena_bytes=arena_bytes, system_bytes=system)

    def largest_arena(self) -> int:
        """Bytes of the arena that fills `ram_bytes`; below 0 if there is no room for any."""
        anonymous = (self.ram_bytes - SYSTEM_BYTES) * PAGE_TABLE_SHARE // (PAGE_TABLE_SHARE + 1)
        return anonymous - (self.anonymous_bytes - self.arena_bytes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "dense_bytes": self.dense_bytes,
            "state_bytes": self.state_bytes,
            "workspace_bytes": self.workspace_bytes,
            "tokenizer_bytes": self.tokenizer_bytes,
            "interpreter_bytes": self.interpreter_bytes,
            "system_bytes": self.system_bytes,
            "arena_bytes": self.arena_bytes,
            "total_bytes": self.total_bytes,
            "anonymous_bytes": self.anonymous_bytes,
            "ram_bytes": self.ram_bytes,
        }


def settle(container: Path, config: EngineConfig) -> tuple[EngineConfig, Budget]:
    """What a configuration means for this container on this machine: see `settle_shape`.

    Raises what reading a container raises, and BudgetError.
    """
    return settle_shape(container_shape(container), config, memory_facts())


def settle_shape(
    shape: ModelShape, config: EngineConfig, memory: MemoryFacts
) -> tuple[EngineConfig, Budget]:
    """The store chosen, the arena and the prefill chunk in bytes and tokens, and the sum.

    Resident if all experts fit into `ram_bytes`, streaming with what is left otherwise. Raises BudgetError with the
    whole sum and the smallest change that would make it fit: if the smallest arena does not, if what was asked for by
    name does not, or if `ram_bytes` is more than a limit of this process lets it have.
    """
    ram_bytes = config.ram_bytes or default_ram_bytes(memory.available_bytes)
    _check_limit(config, memory)
    every, smallest = shape.experts_bytes, smallest_arena(shape)
    least = fixed_budget(shape, config, ram_bytes, config.prefill_chunk or TILE_TOKENS)
    store = _choose_store(config, least, every)
    fewest = every if store == "resident" else min(max(config.cache_bytes or 0, smallest), every)
    chunk = config.prefill_chunk or _default_chunk(shape, config, least.with_arena(fewest), store)
    budget = fixed_budget(shape, config, ram_bytes, chunk)
    arena = fewest
    if store == "streaming" and config.cache_bytes is None:
        arena = min(max(budget.largest_arena(), smallest), every)
    budget = budget.with_arena(arena)
    if budget.total_bytes > ram_bytes:
        raise _refusal(shape, config, budget, store)
    if store == "streaming":
        _check_cache(config.cache_bytes, smallest)
    settled = replace(
        config,
        store=store,
        ram_bytes=ram_bytes,
        cache_bytes=None if store == "resident" else arena,
        prefill_chunk=chunk,
    )
    return settled, budget


def floor_budget(shape: ModelShape, config: EngineConfig) -> Budget:
    """The least that an engine of this context needs: the smallest arena, the shortest chunk. Its `ram_bytes` is its
    own sum, one byte less is refused.
    """
    chunk = config.prefill_chunk or TILE_TOKENS
    budget = fixed_budget(shape, config, 0, chunk).with_arena(smallest_arena(shape))
    return replace(budget, ram_bytes=budget.total_bytes)


def resident_budget(shape: ModelShape, config: EngineConfig) -> Budget:
    """The least with every expert in memory."""
    return floor_budget(shape, config).with_arena(shape.experts_bytes)


def fixed_budget(shape: ModelShape, config: EngineConfig, ram_bytes: int, chunk: int) -> Budget:
    """Everything but the arena, for prefill chunks of `chunk` tokens."""
    ctx = min(config.ctx, shape.max_position)
    budget = Budget(
        dense_bytes=shape.dense_bytes,
        state_bytes=shape.needs.state_bytes(ctx, shape.kv_item_bytes),
        workspace_bytes=shape.needs.workspace_bytes(min(chunk, ctx)),
        tokenizer_bytes=TOKENIZER_FACTOR * shape.tokenizer_bytes,
        interpreter_bytes=INTERPRETER_BYTES,
        system_bytes=0,
        arena_bytes=0,
        ram_bytes=ram_bytes,
    )
    return budget.with_arena(0)


def smallest_arena(shape: ModelShape) -> int:
    """Bytes of one layer's experts of one token; the cache itself needs two."""
    return shape.blob_bytes * max(2, shape.experts_per_token)


def default_ram_bytes(available_bytes: int) -> int:
    """What may be used if nothing is said: what is available, less max(1 GiB, 10 %); at least half of it."""
    margin = max(MARGIN_BYTES, available_bytes // 10)
    return max(available_bytes - margin, available_bytes // 2)


def arena_sizes(container: Path) -> tuple[list[int], int]:
    """Capacities worth comparing, in bytes: ascending ones, from one layer's top-k slots on, and the full one."""
    shape = container_shape(container)
    top_k = max(2, shape.experts_per_token)
    slots = {top_k, top_k * shape.num_layers, shape.num_experts // 4, shape.num_experts // 2}
    partial = [shape.blob_bytes * n for n in sorted(slots) if top_k <= n < shape.num_experts]
    return partial, shape.experts_bytes


def _check_limit(config: EngineConfig, memory: MemoryFacts) -> None:
    """Whoever grows beyond a control group's limit is killed; better refused before that."""
    if config.ram_bytes is None or memory.limit_bytes is None:
        return
    # The kernel keeps limits in whole pages.
    if config.ram_bytes >= memory.limit_bytes + PAGE_BYTES:
        raise BudgetError(
            f"--ram {format_bytes(config.ram_bytes)} is more than the memory limit of this process's control group, "
            f"{format_bytes(memory.limit_bytes)}; give --ram at most {memory.limit_bytes}",
            needed_bytes=config.ram_bytes,
            available_bytes=memory.limit_bytes,
        )


def _choose_store(config: EngineConfig, least: Budget, every: int) -> StoreKind:
    """Resident only if nothing less was asked for and all experts fit beside the least that an engine needs."""
    if config.store != "auto":
        return config.store
    wants_all = config.cache_bytes is None or config.cache_bytes >= every
    fits = least.with_arena(every).total_bytes <= least.ram_bytes
    return "resident" if wants_all and fits else "streaming"


def _default_chunk(
    shape: ModelShape, config: EngineConfig, fewest: Budget, store: StoreKind
) -> int:
    """Tokens of a prefill chunk that was not given. fewest: the sum with the smallest chunk and arena."""
    free_bytes = fewest.largest_arena() - fewest.arena_bytes
    is_arena_fixed = store == "resident" or config.cache_bytes is not None
    tokens = _affordable_chunk(shape.needs, free_bytes, is_arena_fixed=is_arena_fixed)
    return min(tokens, config.ctx, shape.max_position)


def _affordable_chunk(needs: MemoryNeeds, free_bytes: int, *, is_arena_fixed: bool) -> int:
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


def _refusal(
    shape: ModelShape, config: EngineConfig, budget: Budget, store: StoreKind
) -> BudgetError:
    remedies = [f"give --ram at least {budget.total_bytes}"]
    if store == "resident" and floor_budget(shape, config).total_bytes <= budget.ram_bytes:
        remedies.insert(0, "choose --store streaming")
    elif store == "streaming" and config.cache_bytes is not None:
        room = budget.largest_arena()
        if room >= smallest_arena(shape):
            remedies.insert(0, f"lower --cache to {room}")
    ctx = _fitting_ctx(shape, config, budget.ram_bytes)
    if ctx is not None:
        remedies.insert(0, f"lower --ctx to {ctx}")
    return BudgetError(
        f"does not fit into {format_bytes(budget.ram_bytes)}: {budget.describe()}; {', or '.join(remedies)}",
        needed_bytes=budget.total_bytes,
        available_bytes=budget.ram_bytes,
    )


def _fitting_ctx(shape: ModelShape, config: EngineConfig, ram_bytes: int) -> int | None:
    """The longest context, in steps of half, with which this configuration would fit; None if none does."""
    ctx = min(config.ctx, shape.max_position)
    while (ctx := ctx // 2) >= SHORTEST_CTX:
        shorter = replace(config, ctx=ctx, ram_bytes=ram_bytes)
        least = fixed_budget(shape, shorter, ram_bytes, shorter.prefill_chunk or TILE_TOKENS)
        arena = config.cache_bytes or smallest_arena(shape)
        if config.store == "resident":
            arena = shape.experts_bytes
        if least.with_arena(arena).total_bytes <= ram_bytes:
            return ctx
    return None
