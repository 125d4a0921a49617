"""The demo model in our runtime and in Transformers: the same text is as likely. `pytest -m reference`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sparseflow.config import EngineConfig
from sparseflow.engine.engine import Engine
from sparseflow.evaluation.perplexity import measure
from sparseflow.prepare.prepare import prepare

pytestmark = [
    pytest.mark.reference,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.timeout(900),
]
NUM_TOKENS = 1024

demo = pytest.importorskip("sparseflow.demo")


@pytest.fixture(scope="module")
def reference() -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    return transformers.Qwen3_5MoeForCausalLM.from_pretrained(
        demo.checkpoint_path(), dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    container = prepare(demo.checkpoint_path(), tmp_path_factory.mktemp("demo") / "bf16", "bf16")
    with Engine.open(container, EngineConfig(ctx=NUM_TOKENS, threads=2)) as opened:
        yield opened


@pytest.fixture(scope="module")
def ids(engine: Engine) -> list[int]:
    text = Path(demo.heldout_path()).read_text(encoding="utf-8")
    return engine.tokenizer.encode(text[: 8 * NUM_TOKENS])[:NUM_TOKENS]


class _Reference:
    """Transformers with the face that perplexity needs."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def iter_logits(self, ids: list[int]) -> Any:
        import torch

        with torch.no_grad():
            yield self._model(torch.tensor([ids])).logits[0].numpy()


def test_every_position_of_held_out_text_is_close(
    engine: Engine, reference: Any, ids: list[int]
) -> None:
    ours = engine.logits(ids)
    theirs: NDArray[np.float32] = next(_Reference(reference).iter_logits(ids))
    difference = np.abs(ours - theirs).max(axis=1) / np.abs(theirs).max(axis=1)
    assert difference.max() <= 2e-4
    assert len(ids) == NUM_TOKENS


def test_perplexity_is_the_same(engine: Engine, reference: Any, ids: list[int]) -> None:
    ours = measure(engine, ids, NUM_TOKENS)
    theirs = measure(_Reference(reference), ids, NUM_TOKENS)
    assert math.isclose(ours.nats_per_token, theirs.nats_per_token, rel_tol=1e-5)
