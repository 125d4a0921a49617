"""Remakes the golden values with Transformers and compares: `pytest -m reference`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from sparseflow.config import EngineConfig
from sparseflow.engine.engine import Engine

pytestmark = [
    pytest.mark.reference,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.timeout(900),
]
ROOT = Path(__file__).parents[2]
TINY = Path(__file__).parent / "tiny"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("make_golden", ROOT / "tools" / "make_golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(maker: ModuleType) -> Any:
    return maker.make_model()


@pytest.fixture(scope="module")
def engine(tiny_bf16: Path) -> Iterator[Engine]:
    with Engine.open(tiny_bf16, EngineConfig(ctx=128, threads=2)) as opened:
        yield opened


def test_the_checkpoint_is_remade_byte_for_byte(
    maker: ModuleType, model: Any, tmp_path: Path
) -> None:
    maker.write_checkpoint(model, tmp_path)
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / name).read_bytes() == (TINY / name).read_bytes(), name


def test_the_golden_logits_are_remade(maker: ModuleType, model: Any) -> None:
    remade = maker.compute(model, maker.make_ids())
    with np.load(TINY / "logits.npz") as stored:
        np.testing.assert_array_equal(remade.ids, stored["ids"])
        # Not to the bit: float32 sums in torch depend on the machine.
        assert maker.largest_difference(remade.chunked, stored["chunked"]) <= 5e-5
        assert maker.largest_difference(remade.recurrent, stored["recurrent"]) <= 5e-5


@pytest.mark.parametrize("num_prompt", range(1, 68))
def test_the_reference_agrees_after_every_prompt_length(
    maker: ModuleType, model: Any, engine: Engine, num_prompt: int
) -> None:
    ids = maker.make_ids()[: num_prompt + maker.NUM_DECODE]
    reference = maker.prefill_then_decode(model, ids, num_prompt)
    ours = engine.logits(ids.tolist())
    assert maker.largest_difference(ours, reference) <= 2e-4
    top = np.sort(reference, axis=1)
    is_clear = top[:, -1] - top[:, -2] > 1e-4
    assert (ours.argmax(axis=1) == reference.argmax(axis=1))[is_clear].all()
