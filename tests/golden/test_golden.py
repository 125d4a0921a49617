"""The bf16 recipe against what Transformers computes in float32 with the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sparseflow.config import EngineConfig
from sparseflow.engine.engine import Engine

TOLERANCE = 2e-4
"""Of max|a - b| / max|b| at a position."""
NUM_DECODE = 40
PROMPT_LENGTHS = range(1, 68)

Logits = NDArray[np.float32]


@pytest.fixture(scope="module", params=["qwen3_5_moe", "mixtral"])
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def engine(family: str, tiny_bf16: Path, mixtral_bf16: Path) -> Iterator[Engine]:
    container = mixtral_bf16 if family == "mixtral" else tiny_bf16
    with Engine.open(container, EngineConfig(ctx=128, threads=2)) as opened:
        yield opened


@pytest.fixture(scope="module")
def golden(
    family: str, tiny_checkpoint: Path, mixtral_checkpoint: Path
) -> dict[str, NDArray[np.generic]]:
    checkpoint = mixtral_checkpoint if family == "mixtral" else tiny_checkpoint
    with np.load(checkpoint / "logits.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def ours(engine: Engine, golden: dict[str, Logits]) -> Logits:
    return engine.logits(golden["ids"].tolist())


def run(engine: Engine, ids: NDArray[np.int32], pieces: list[int]) -> Logits:
    """Logits after every id, computed in pieces of these lengths."""
    sequence = engine.new_sequence()
    sequence.append(ids.tolist())
    rows = [sequence.forward(length, "all") for length in pieces]
    return np.concatenate([row for row in rows if row is not None])


def assert_close(found: Logits, reference: Logits) -> None:
    difference = np.abs(found - reference).max(axis=1) / np.abs(reference).max(axis=1)
    assert difference.max() <= TOLERANCE
    top = np.sort(reference, axis=1)
    is_clear = top[:, -1] - top[:, -2] > 1e-4
    np.testing.assert_array_equal(
        found.argmax(axis=1)[is_clear], reference.argmax(axis=1)[is_clear]
    )


@pytest.mark.parametrize("path", ["chunked", "recurrent"])
def test_every_position_is_close_to_the_reference(
    ours: Logits, golden: dict[str, Logits], path: str
) -> None:
    assert_close(ours, golden[path])


@pytest.mark.parametrize("num_prompt", PROMPT_LENGTHS)
def test_prefill_then_decode_is_close_to_the_reference(
    engine: Engine, golden: dict[str, Logits], ours: Logits, num_prompt: int
) -> None:
    ids = golden["ids"][: num_prompt + NUM_DECODE].astype(np.int32)
    found = run(engine, ids, [num_prompt] + [1] * NUM_DECODE)
    assert_close(found, golden["chunked"][: len(ids)])
    assert_close(found, golden["recurrent"][: len(ids)])
    np.testing.assert_array_equal(found, ours[: len(ids)])


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
def test_chunks_change_no_bit(
    engine: Engine, golden: dict[str, Logits], ours: Logits, chunk: int
) -> None:
    ids = golden["ids"].astype(np.int32)
    pieces = [min(chunk, len(ids) - start) for start in range(0, len(ids), chunk)]
    np.testing.assert_array_equal(run(engine, ids, pieces), ours)
