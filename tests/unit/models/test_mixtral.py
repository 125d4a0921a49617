"""The Mixtral family from checkpoint to text: both layouts of the experts, tied heads, the token that begins a text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import deserialize

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.summary import summarize_checkpoint
from sparseflow.cli.main import main
from sparseflow.config import EngineConfig, SamplingParams
from sparseflow.engine.engine import Engine
from sparseflow.errors import CheckpointError, UnsupportedError
from sparseflow.prepare.prepare import prepare
from sparseflow.prepare.verify import verify

LAYERS, EXPERTS, BOS = 2, 11, 0
IDS = list(range(3, 40))
Tensors = dict[str, NDArray[np.uint16]]
"""BF16 as bits."""


def rewrite(
    source: Path, target: Path, change: Callable[[Tensors], Tensors], **fields: Any
) -> Path:
    """A copy of a checkpoint with other tensors and other fields of config.json."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.npz"))
    tensors = {
        name: np.frombuffer(t["data"], np.uint16).reshape(t["shape"])
        for name, t in deserialize((source / "model.safetensors").read_bytes())
    }
    write_bf16(change(tensors), target / "model.safetensors")
    config = json.loads((target / "config.json").read_text()) | fields
    (target / "config.json").write_text(json.dumps(config))
    return target


def write_bf16(tensors: Tensors, path: Path) -> None:
    header: dict[str, Any] = {}
    offset = 0
    for name, values in tensors.items():
        span = [offset, offset + values.nbytes]
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": span}
        offset += values.nbytes
    text = json.dumps(header).encode()
    payload = b"".join(values.tobytes() for values in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + payload)


def fuse(tensors: Tensors) -> Tensors:
    """The names that newer tools write."""
    fused = {
        name.replace(".block_sparse_moe.", ".mlp."): values
        for name, values in tensors.items()
        if ".experts." not in name
    }
    for layer in range(LAYERS):
        old, new = f"model.layers.{layer}.block_sparse_moe", f"model.layers.{layer}.mlp"
        w1, w2, w3 = (
            np.stack([tensors[f"{old}.experts.{e}.{name}.weight"] for e in range(EXPERTS)])
            for name in ("w1", "w2", "w3")
        )
        fused[f"{new}.experts.gate_up_proj"] = np.concatenate([w1, w3], axis=1)
        fused[f"{new}.experts.down_proj"] = w2
    return fused


def logits(container: Path) -> NDArray[np.float32]:
    with Engine.open(container, EngineConfig(ctx=64, threads=1)) as engine:
        return engine.logits(IDS)


def test_every_tensor_is_classified(mixtral_checkpoint: Path) -> None:
    with Checkpoint.open(mixtral_checkpoint) as checkpoint:
        assert checkpoint.unknown == []
        counts = {s.tensor_class: s.num_tensors for s in summarize_checkpoint(checkpoint)}
    assert counts["routed experts"] == 3 * LAYERS * EXPERTS
    assert (counts["attention"], counts["routers"], counts["norms"]) == (8, 2, 5)
    assert (counts["shared experts"], counts["delta"]) == (0, 0)


def test_fused_experts_make_the_same_container_files(
    mixtral_checkpoint: Path, mixtral_bf16: Path, tmp_path: Path
) -> None:
    fused = rewrite(mixtral_checkpoint, tmp_path / "fused", fuse)
    container = prepare(fused, tmp_path / "container", "bf16")
    names = ["dense.safetensors", *(f"experts/layer_{i:03d}.sfi" for i in range(LAYERS))]
    for name in names:
        assert (container / name).read_bytes() == (mixtral_bf16 / name).read_bytes(), name


def test_a_tied_head_is_the_embedding(mixtral_checkpoint: Path, tmp_path: Path) -> None:
    def tie(tensors: Tensors) -> Tensors:
        return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}

    def drop(tensors: Tensors) -> Tensors:
        return {name: values for name, values in tensors.items() if name != "lm_head.weight"}

    equal = rewrite(mixtral_checkpoint, tmp_path / "equal", tie)
    tied = rewrite(mixtral_checkpoint, tmp_path / "tied", drop, tie_word_embeddings=True)
    np.testing.assert_array_equal(
        logits(prepare(equal, tmp_path / "a", "bf16")),
        logits(prepare(tied, tmp_path / "b", "bf16")),
    )


def test_an_expert_that_is_missing_is_named(mixtral_checkpoint: Path, tmp_path: Path) -> None:
    lost = "model.layers.1.block_sparse_moe.experts.7.w3.weight"

    def lose(tensors: Tensors) -> Tensors:
        return {name: values for name, values in tensors.items() if name != lost}

    damaged = rewrite(mixtral_checkpoint, tmp_path / "damaged", lose)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.experts\.7\.up_proj"):
        prepare(damaged, tmp_path / "container", "bf16")


def test_prepare_refuses_what_could_not_run(mixtral_checkpoint: Path, tmp_path: Path) -> None:
    windowed = rewrite(mixtral_checkpoint, tmp_path / "windowed", dict, sliding_window=128)
    with pytest.raises(UnsupportedError, match="sliding_window 128"):
        prepare(windowed, tmp_path / "container", "bf16")
    odd = rewrite(mixtral_checkpoint, tmp_path / "odd", dict, num_key_value_heads=4)
    with pytest.raises(CheckpointError, match="not a multiple"):
        prepare(odd, tmp_path / "container", "bf16")
    assert not (tmp_path / "container").exists()


@pytest.mark.parametrize("container", ["mixtral_bf16", "mixtral_int8"])
def test_verify_agrees_with_the_checkpoint(
    request: pytest.FixtureRequest, mixtral_checkpoint: Path, container: str
) -> None:
    report = verify(request.getfixturevalue(container), mixtral_checkpoint)
    assert report.findings == []
    assert report.num_experts == LAYERS * EXPERTS


def test_a_raw_text_begins_with_the_tokenizer_s_token_and_a_rendered_one_does_not(
    mixtral_bf16: Path,
) -> None:
    params = SamplingParams(temperature=0.0, max_new_tokens=4, ignore_eos=True)
    with Engine.open(mixtral_bf16, EngineConfig(ctx=64, threads=1)) as engine:
        ids = engine.tokenizer.encode("once upon a time")

        def hashes(prompt: str | list[int], **options: bool) -> list[str | None]:
            tokens = engine.generate(prompt, params, hash_logits=True, **options)
            return [token.logits_sha256 for token in tokens]

        assert hashes("once upon a time") == hashes([BOS, *ids])
        assert hashes("once upon a time", is_rendered=True) == hashes(ids)
        assert hashes([BOS, *ids]) != hashes(ids)


def test_run_inspect_and_the_ladder_work(
    mixtral_checkpoint: Path, mixtral_int8: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(mixtral_checkpoint), "--expert", "1:10", "--json"]) == 0
    assert "block_sparse_moe.experts.10.w2.weight" in capsys.readouterr().out
    words = ["--raw", "--temperature=0", "--ignore-eos", "--max-new-tokens=3", "--json"]
    assert main(["run", str(mixtral_int8), "a tale", *words]) == 0
    report = json.loads(capsys.readouterr().out)
    with Engine.open(mixtral_int8, EngineConfig(ctx=64, threads=1)) as engine:
        assert report["prompt_tokens"] == 1 + len(engine.tokenizer.encode("a tale"))
    assert main(["verify", str(mixtral_int8), "--ladder", "--quick", "--quiet"]) == 0
