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
DIRECTORIES = {"qwen3_5_moe": "tiny", "mixtral": "tiny_mixtral"}


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


@pytest.fixture(scope="module", params=sorted(DIRECTORIES))
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def stored_in(family: str) -> Path:
    return Path(__file__).parent / DIRECTORIES[family]


@pytest.fixture(scope="module")
def model(maker: ModuleType, family: str) -> Any:
    return maker.make_model(maker.FAMILIES[family])


@pytest.fixture(scope="module")
def engine(family: str, tiny_bf16: Path, mixtral_bf16: Path) -> Iterator[Engine]:
    container = mixtral_bf16 if family == "mixtral" else tiny_bf16
    with Engine.open(container, EngineConfig(ctx=128, threads=2)) as opened:
        yield opened


def test_the_checkpoint_is_remade_byte_for_byte(
    maker: ModuleType, family: str, model: Any, stored_in: Path, tmp_path: Path
) -> None:
    maker.write_checkpoint(maker.FAMILIES[family], model, tmp_path)
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / name).read_bytes() == (stored_in / name).read_bytes(), name


def test_the_reference_reads_the_checkpoint_as_the_model_that_wrote_it(
    maker: ModuleType, family: str, model: Any, stored_in: Path
) -> None:
    read = maker.FAMILIES[family].model_class.from_pretrained(
        stored_in, dtype="float32", attn_implementation="eager"
    )
    expected = model.state_dict()
    assert read.state_dict().keys() == expected.keys()
    assert all((values == expected[name]).all() for name, values in read.state_dict().items())


def test_the_golden_logits_are_remade(maker: ModuleType, model: Any, stored_in: Path) -> None:
    remade = maker.compute(model, maker.make_ids())
    with np.load(stored_in / "logits.npz") as stored:
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
