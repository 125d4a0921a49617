"""The sum of memory: what `auto` chooses, what is refused, and that the message carries the whole sum."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from sparseflow.config import EngineConfig
from sparseflow.container.recipes import get_recipe
from sparseflow.errors import BudgetError, ContainerError
from sparseflow.host.memory import MemoryFacts
from sparseflow.layers.tiles import TILE_TOKENS
from sparseflow.planning import budget as planning
from sparseflow.planning.budget import (
    arena_sizes,
    default_ram_bytes,
    floor_budget,
    resident_budget,
    settle,
    settle_shape,
)
from sparseflow.planning.model_shape import ModelShape, container_shape, recipe_shape
from synthetic.layout import text_config

MIB = 1 << 20


def _settle(container: Path, **options: object) -> tuple[EngineConfig, planning.Budget]:
    return settle(container, dataclasses.replace(EngineConfig(), **options))  # type: ignore[arg-type]


def qwen_shape(recipe: str = "int4") -> ModelShape:
    """The published model's, without a byte of it."""
    config = {
        **text_config(40, 248_320, "true"),
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
    }
    return recipe_shape(config, get_recipe(recipe), {"tokenizer.json": 12 << 20})


def _floor(container: Path, **options: object) -> int:
    config = dataclasses.replace(EngineConfig(), **options)  # type: ignore[arg-type]
    return floor_budget(container_shape(container), config).total_bytes


def _least_resident(container: Path) -> int:
    return resident_budget(container_shape(container), EngineConfig()).total_bytes


def test_default_leaves_a_margin() -> None:
    assert default_ram_bytes(64 << 30) == (64 << 30) - (64 << 30) // 10
    assert default_ram_bytes(8 << 30) == 7 << 30
    assert default_ram_bytes(1 << 30) == 512 * MIB


def test_auto_is_resident_if_everything_fits(tiny_moe: Path) -> None:
    config, budget = _settle(tiny_moe, ram_bytes=1 << 40)
    assert config.store == "resident"
    assert budget.total_bytes <= budget.ram_bytes


def test_auto_streams_with_what_is_left(tiny_moe: Path) -> None:
    _, whole = _settle(tiny_moe, ram_bytes=1 << 40, prefill_chunk=64)
    ram_bytes = whole.total_bytes - 1
    config, budget = _settle(tiny_moe, ram_bytes=ram_bytes, prefill_chunk=64)
    assert config.store == "streaming"
    assert config.cache_bytes == budget.arena_bytes < whole.arena_bytes
    assert ram_bytes - 4 < budget.total_bytes <= ram_bytes  # page tables are counted in whole bytes


def test_one_byte_below_the_floor_is_refused_with_the_sum(tiny_moe: Path) -> None:
    smallest = arena_sizes(tiny_moe)[0][0]
    floor = _floor(tiny_moe)
    config, budget = _settle(tiny_moe, ram_bytes=floor)
    assert budget.total_bytes == floor
    assert config.cache_bytes == smallest
    with pytest.raises(
        BudgetError, match=r"dense weights .* state .* experts .* at least"
    ) as caught:
        _settle(tiny_moe, ram_bytes=floor - 1)
    assert caught.value.needed_bytes == floor
    assert caught.value.available_bytes == floor - 1


def test_resident_by_name_is_refused_where_it_does_not_fit(tiny_moe: Path) -> None:
    with pytest.raises(BudgetError, match="--store streaming"):
        _settle(tiny_moe, ram_bytes=_least_resident(tiny_moe) - 1, store="resident")


def test_a_prefill_chunk_is_the_whole_context_where_memory_allows(tiny_moe: Path) -> None:
    for store in ("resident", "streaming"):
        config, _ = _settle(tiny_moe, ram_bytes=1 << 40, ctx=500, store=store)
        assert config.prefill_chunk == 500


def test_a_prefill_chunk_takes_what_is_left_beside_a_fixed_arena(tiny_moe: Path) -> None:
    least = _least_resident(tiny_moe)
    config, budget = _settle(tiny_moe, ram_bytes=least + 100_000, store="resident")
    assert config.prefill_chunk is not None
    assert TILE_TOKENS < config.prefill_chunk < 500
    assert 0 <= budget.ram_bytes - budget.total_bytes < 10_000
    config, _ = _settle(tiny_moe, ram_bytes=least, store="resident")
    assert config.prefill_chunk == TILE_TOKENS


def test_a_default_chunk_leaves_a_streaming_arena_half_of_what_it_could_have(
    tiny_moe: Path,
) -> None:
    smallest = arena_sizes(tiny_moe)[0][0]
    room = 200_000
    ram_bytes = _floor(tiny_moe) + room
    config, budget = _settle(tiny_moe, ram_bytes=ram_bytes)
    assert config.prefill_chunk is not None
    assert config.prefill_chunk > TILE_TOKENS
    assert budget.arena_bytes >= smallest + room // 2
    assert budget.total_bytes <= ram_bytes


def test_a_prefill_chunk_that_does_not_fit_is_refused_with_the_sum(tiny_moe: Path) -> None:
    with pytest.raises(BudgetError, match=r"workspace .* at least"):
        _settle(tiny_moe, ram_bytes=_floor(tiny_moe), prefill_chunk=500)


def test_a_refusal_proposes_a_context_that_fits() -> None:
    shape, memory = qwen_shape(), MemoryFacts(64 << 30, 64 << 30, None, 0)
    long = EngineConfig(ctx=65536)
    ram_bytes = floor_budget(shape, dataclasses.replace(long, ctx=16384)).total_bytes
    short = dataclasses.replace(long, ram_bytes=ram_bytes)
    with pytest.raises(BudgetError, match=r"lower --ctx to 16384, or give --ram"):
        settle_shape(shape, short, memory)
    settle_shape(shape, dataclasses.replace(short, ctx=16384), memory)


def test_a_refused_cache_proposes_the_largest_that_fits(tiny_moe: Path) -> None:
    ram_bytes = _floor(tiny_moe, ctx=256) + 100_000
    with pytest.raises(BudgetError, match=r"lower --cache to (\d+)") as caught:
        _settle(tiny_moe, ram_bytes=ram_bytes, ctx=256, cache_bytes=400_000)
    room = int(str(caught.value).partition("lower --cache to ")[2].split(",")[0])
    _settle(tiny_moe, ram_bytes=ram_bytes, ctx=256, cache_bytes=room)


def test_ram_beyond_the_control_groups_limit_is_refused(tiny_moe: Path) -> None:
    memory = MemoryFacts(64 << 30, 60 << 30, 4 << 30, 0)
    shape = container_shape(tiny_moe)
    with pytest.raises(BudgetError, match=f"at most {4 << 30}"):
        settle_shape(shape, EngineConfig(ram_bytes=5 << 30), memory)
    settle_shape(shape, EngineConfig(ram_bytes=4 << 30), memory)


def test_anonymous_memory_is_the_sum_without_the_systems_part(tiny_moe: Path) -> None:
    _, budget = _settle(tiny_moe, ram_bytes=1 << 40)
    assert budget.total_bytes == sum(budget.lines().values())
    assert budget.anonymous_bytes == budget.total_bytes - budget.system_bytes


def test_cache_flag_bounds_the_arena(tiny_moe: Path) -> None:
    partial, full = arena_sizes(tiny_moe)
    config, _ = _settle(tiny_moe, ram_bytes=1 << 40, cache_bytes=partial[-1])
    assert (config.store, config.cache_bytes) == ("streaming", partial[-1])
    config, _ = _settle(tiny_moe, ram_bytes=1 << 40, cache_bytes=full, store="streaming")
    assert config.cache_bytes == full


def test_cache_below_one_tokens_experts_is_refused(tiny_moe: Path) -> None:
    smallest = arena_sizes(tiny_moe)[0][0]
    with pytest.raises(BudgetError, match=str(smallest)):
        _settle(tiny_moe, ram_bytes=1 << 40, cache_bytes=smallest - 1)


def test_longer_context_costs_state(tiny_moe: Path) -> None:
    _, short = _settle(tiny_moe, ram_bytes=1 << 40, ctx=16)
    _, long = _settle(tiny_moe, ram_bytes=1 << 40, ctx=32)
    assert long.state_bytes > short.state_bytes


def test_arena_sizes_ascend_below_the_full_one(tiny_moe: Path) -> None:
    partial, full = arena_sizes(tiny_moe)
    assert partial == sorted(set(partial))
    assert partial[-1] < full


def test_container_without_a_tokenizer_is_refused(tiny_moe: Path, tmp_path: Path) -> None:
    container = shutil.copytree(tiny_moe, tmp_path / "container")
    (container / "tokenizer.json").unlink()
    with pytest.raises(ContainerError, match=r"tokenizer\.json: missing"):
        _settle(container)
