"""A long prompt is one pass over the experts: whatever the cache holds, no layer reads an expert twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparseflow.config import EngineConfig, SamplingParams
from sparseflow.engine.engine import Engine
from sparseflow.layers.tiles import TILE_TOKENS, tiles
from sparseflow.native import _ext
from sparseflow.prepare.prepare import prepare

NUM_LAYERS = 4
FIRST_TOKEN = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def long_container(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model with a longer context."""
    checkpoint = tmp_path_factory.mktemp("long") / "checkpoint"
    shutil.copytree(tiny_checkpoint, checkpoint)
    path = checkpoint / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config.get("text_config", config)["max_position_embeddings"] = 8192
    path.write_text(json.dumps(config), encoding="utf-8")
    return prepare(checkpoint, checkpoint.parent / "container", recipe="int8")


def prompt_of(num_tokens: int) -> list[int]:
    ids: list[int] = np.random.default_rng(num_tokens).integers(5, 200, num_tokens).tolist()
    return ids


class Touched:
    """Which experts each layer's router chose, as the store is told."""

    def __init__(self, engine: Engine) -> None:
        self.experts: list[set[int]] = [set() for _ in range(NUM_LAYERS)]
        self._compute = engine._loaded.store.compute
        engine._loaded.store.compute = self.compute  # type: ignore[method-assign]

    def compute(self, layer: int, x: Any, ids: Any, *rest: Any) -> None:
        self.experts[layer].update(np.unique(ids).tolist())
        self._compute(layer, x, ids, *rest)


@pytest.mark.parametrize("slots", [2, 3, 20, 40])
@pytest.mark.parametrize("num_tokens", [2048, 4096])
def test_each_touched_expert_is_read_once_a_layer(
    long_container: Path, num_tokens: int, slots: int
) -> None:
    blob_bytes = _ext.SfiFile(str(long_container / "experts" / "layer_000.sfi")).blob_bytes
    config = EngineConfig(threads=2, store="streaming", cache_bytes=slots * blob_bytes)
    with Engine.open(long_container, config) as engine:
        touched = Touched(engine)
        next(engine.generate(prompt_of(num_tokens), FIRST_TOKEN))
        reads = engine.stats().experts.layer_reads
    assert all(touched.experts)
    assert list(reads) == [len(experts) for experts in touched.experts]


def test_tiles_change_no_bit(long_container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_of(2 * TILE_TOKENS + 5)

    def run(chunk: int) -> Iterator[str | None]:
        config = EngineConfig(threads=2, prefill_chunk=chunk)
        with Engine.open(long_container, config) as engine:
            for token in engine.generate(prompt, FIRST_TOKEN, hash_logits=True):
                yield token.logits_sha256

    hashes = {next(run(chunk)) for chunk in (1024, TILE_TOKENS, 100)}
    monkeypatch.setattr("sparseflow.layers.tiles.TILE_TOKENS", 33)
    assert {next(run(1024))} == hashes
    assert len(hashes) == 1


@pytest.mark.parametrize("num_tokens", [1, TILE_TOKENS, TILE_TOKENS + 1, 3 * TILE_TOKENS])
def test_tiles_cover_every_token_once(num_tokens: int) -> None:
    covered = [i for tile in tiles(num_tokens) for i in range(tile.start, tile.stop)]
    assert covered == list(range(num_tokens))
    assert all(tile.stop - tile.start <= TILE_TOKENS for tile in tiles(num_tokens))
