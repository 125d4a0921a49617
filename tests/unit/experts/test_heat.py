"""The heat table: kept from run to run, refused when damaged, and never able to fail or to change a run."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparseflow.config import EngineConfig, SamplingParams
from sparseflow.engine.engine import Engine
from sparseflow.engine.stats import EngineStats
from sparseflow.experts.heat import HEADER, MAGIC, read_heat, write_heat
from sparseflow.native import _ext

PARAMS = SamplingParams(max_new_tokens=24, temperature=0.8, seed=5, ignore_eos=True)
PROMPT = list(range(20, 50))
SHAPE = (4, 12)


def run(container: Path, heat_dir: Path | None, **options: Any) -> tuple[list[Any], EngineStats]:
    """The fingerprint of one generation, and the statistics after the engine has closed."""
    blob_bytes = _ext.SfiFile(str(container / "experts" / "layer_000.sfi")).blob_bytes
    options = {"store": "streaming", "cache_bytes": 40 * blob_bytes, **options}
    config = EngineConfig(ctx=96, threads=2, heat_dir=heat_dir, **options)
    with Engine.open(container, config) as engine:
        tokens = engine.generate(PROMPT, PARAMS, hash_logits=True)
        found = [(token.id, token.logits_sha256) for token in tokens]
    return found, engine.stats()


def heat_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_a_second_run_preloads_and_changes_no_bit(tiny_moe: Path, tmp_path: Path) -> None:
    cold, first = run(tiny_moe, tmp_path / "heat")
    assert first.experts.preloaded == 0
    assert len(heat_files(tmp_path)) == 1
    warm, second = run(tiny_moe, tmp_path / "heat")
    assert second.experts.preloaded > 0
    assert warm == cold
    assert first.warnings == second.warnings == ()


def test_a_run_without_a_place_for_heat_leaves_nothing(tiny_moe: Path, tmp_path: Path) -> None:
    cold, _ = run(tiny_moe, None)
    warm, stats = run(tiny_moe, tmp_path / "heat", policy="lru")
    assert heat_files(tmp_path) == []
    assert stats.experts.preloaded == 0
    assert warm == cold


def test_a_resident_engine_keeps_no_heat(tiny_moe: Path, tmp_path: Path) -> None:
    run(tiny_moe, tmp_path / "heat", store="resident", cache_bytes=None)
    assert heat_files(tmp_path) == []


def test_containers_have_heat_of_their_own(tiny_moe: Path, tiny_bf16: Path, tmp_path: Path) -> None:
    run(tiny_moe, tmp_path)
    run(tiny_bf16, tmp_path)
    assert len(heat_files(tmp_path)) == 2


def damage_nothing_left(raw: bytes) -> bytes:
    return b""


def damage_cut(raw: bytes) -> bytes:
    return raw[:-1]


def damage_longer(raw: bytes) -> bytes:
    return raw + b"x"


def damage_bit(raw: bytes) -> bytes:
    return raw[:40] + bytes([raw[40] ^ 1]) + raw[41:]


def damage_magic(raw: bytes) -> bytes:
    return b"GGUF" + raw[4:]


def damage_shape(raw: bytes) -> bytes:
    return raw[:8] + struct.pack("<2I", 12, 4) + raw[16:]


def damage_nan(raw: bytes) -> bytes:
    values = np.frombuffer(raw[HEADER.size :], dtype="<f4").copy()
    values[7] = np.nan
    body = values.tobytes()
    return HEADER.pack(MAGIC, *SHAPE, _ext.xxh3_64(body)) + body


def damage_negative(raw: bytes) -> bytes:
    body = np.full(SHAPE[0] * SHAPE[1] * 2, -1.0, dtype="<f4").tobytes()
    return HEADER.pack(MAGIC, *SHAPE, _ext.xxh3_64(body)) + body


@pytest.mark.parametrize(
    "damage",
    [
        damage_nothing_left, damage_cut, damage_longer, damage_bit, damage_magic, damage_shape,
        damage_nan, damage_negative,
    ],
)  # fmt: skip
def test_a_hostile_table_is_a_warning_and_is_replaced(
    tiny_moe: Path, tmp_path: Path, damage: Any
) -> None:
    cold, _ = run(tiny_moe, tmp_path)
    (path,) = heat_files(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    found, stats = run(tiny_moe, tmp_path)
    assert found == cold
    assert stats.experts.preloaded == 0
    (warning,) = stats.warnings
    assert str(path) in warning
    assert "not used" in warning
    assert run(tiny_moe, tmp_path)[1].warnings == ()


def test_a_place_that_cannot_be_written_is_a_warning(tiny_moe: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    found, stats = run(tiny_moe, tmp_path / "file")
    assert len(found) == PARAMS.max_new_tokens
    assert [warning.partition(": ")[0].rpartition(" not ")[2] for warning in stats.warnings] == [
        "used", "written",
    ]  # fmt: skip


def test_what_is_written_is_read_and_no_other_file_is_left(tmp_path: Path) -> None:
    heat = np.random.default_rng(3).random((*SHAPE, 2)).astype(np.float32)
    for _ in range(2):
        write_heat(tmp_path / "deep" / "x.heat", heat)
    np.testing.assert_array_equal(read_heat(tmp_path / "deep" / "x.heat", SHAPE), heat)
    assert heat_files(tmp_path) == [tmp_path / "deep" / "x.heat"]
