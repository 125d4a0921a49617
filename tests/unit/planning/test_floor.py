"""The floor: bytes of a token, counted apart from the code that counts them, and the time that they take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparseflow.container.manifest import read_manifest
from sparseflow.container.reader import Container
from sparseflow.planning.floor import (
    TokenBytes,
    doubt,
    largest_cache_bytes,
    overlap_floor,
    perfect_floor,
    prefill_floor,
    resident_floor,
    token_bytes,
    token_macs,
)
from sparseflow.planning.model_shape import container_shape

NEEDED = TokenBytes(
    layer_rest=(100, 200),
    layer_shared=(10, 10),
    outside=50,
    expert=20,
    blob=32,
    experts_per_token=4,
    delta_state=0,
    kv_per_position=0,
)


def test_resident_bytes_are_all_parts_once() -> None:
    assert NEEDED.resident == 100 + 200 + 10 + 10 + 50 + 2 * 4 * 20
    assert resident_floor(NEEDED, 10.0) == pytest.approx(53.0)


def test_without_reads_the_overlap_floor_is_the_resident_one() -> None:
    assert overlap_floor(NEEDED, [0, 0], 10.0, 1.0) == pytest.approx(resident_floor(NEEDED, 10.0))


def test_a_layer_waits_for_the_longer_of_hits_and_reads_then_computes_the_last_expert() -> None:
    rest = (
        50 + 100 + 200 + 10 + 4 * 20
    ) / 10  # all but the first layer's experts and shared expert
    slow_disk = overlap_floor(NEEDED, [1, 0], 10.0, 1.0)
    assert slow_disk == pytest.approx(rest + max((3 * 20 + 10) / 10, 32 / 1.0) + 20 / 10)
    fast_disk = overlap_floor(NEEDED, [1, 0], 10.0, 1e9)
    assert fast_disk == pytest.approx(rest + (3 * 20 + 10) / 10 + 20 / 10)


def test_layers_do_not_overlap_with_each_other() -> None:
    two = overlap_floor(NEEDED, [4, 4], 1e12, 1.0)
    assert two == pytest.approx(2 * 4 * 32, rel=1e-6)


def test_perfect_overlap_is_the_slower_of_memory_and_disk() -> None:
    disk = 8 * 32
    assert perfect_floor(NEEDED, [4, 4], 1e12, 1.0) == pytest.approx(disk)
    assert perfect_floor(NEEDED, [4, 4], 10.0, 1e12) == pytest.approx((NEEDED.resident + disk) / 10)


def test_bytes_of_a_container_are_those_of_its_files(tiny_moe: Path) -> None:
    needed = token_bytes(tiny_moe)
    manifest = read_manifest(tiny_moe)
    with Container.open(tiny_moe) as container:
        config = container.config
        dense = sum(
            len(container.read_entry(name))
            for name in container._entries
            if not name.startswith("embed_tokens")
        )
        layout = container.layouts[0]
    heads, key = config["linear_num_value_heads"], config["linear_key_head_dim"]
    values = heads * config["linear_value_head_dim"]
    tails = (2 * config["linear_num_key_heads"] * key + values) * (
        config["linear_conv_kernel_dim"] - 1
    )
    state = 2 * 4 * (key * values + tails) * config["layer_types"].count("linear_attention")
    state -= state % len(config["layer_types"])
    experts = manifest.experts.num_layers * config["num_experts_per_tok"] * layout.payload_bytes
    assert needed.delta_state == state
    assert needed.resident == dense + state + experts


def test_macs_of_a_prompt_token_leave_head_and_embedding_out(tiny_moe: Path) -> None:
    manifest = read_manifest(tiny_moe)
    experts = manifest.experts
    routed = 3 * experts.hidden_size * experts.moe_intermediate_size * experts.num_layers
    shape = container_shape(tiny_moe)
    fewer = replace(shape, config={**shape.config, "num_experts_per_tok": 1})
    more = replace(shape, config={**shape.config, "num_experts_per_tok": 2})
    assert token_macs(more) - token_macs(fewer) == routed
    matrices = sum(
        record.shape[0] * record.shape[1]
        for name, record in manifest.tensors.items()
        if len(record.shape) == 2 and name.startswith("layers.")
    )
    assert token_macs(fewer) - routed == matrices
    assert prefill_floor(100, 5, 250.0) == pytest.approx(2.0)


def test_share_above_one_and_a_model_in_the_cpus_cache_are_doubted() -> None:
    assert "mistake" in doubt(NEEDED, 1.01, 0)
    assert doubt(NEEDED, 0.9, 0) == ""
    assert "cache" in doubt(NEEDED, 0.5, NEEDED.resident // 4 + 1)


def test_largest_cache_is_read_with_its_unit(tmp_path: Path) -> None:
    for index, size in (("index0", "32K"), ("index3", "8M")):
        directory = tmp_path / "sys/devices/system/cpu/cpu0/cache" / index
        directory.mkdir(parents=True)
        (directory / "size").write_text(size + "\n")
    assert largest_cache_bytes(tmp_path) == 8 << 20
    assert largest_cache_bytes(tmp_path / "nothing") == 0
