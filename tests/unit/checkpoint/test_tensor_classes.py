"""Every tensor of the published model is classified; one that nothing claims is found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from make_synthetic_checkpoint import make, parse_options
from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.summary import collapse_names, not_carried, summarize_checkpoint
from sparseflow.checkpoint.tensor_classes import find_identity, get_family
from sparseflow.errors import CheckpointError, UnsupportedError

CONFIG = {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "num_experts": 20}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All names and true shapes of Qwen3.6-35B-A3B in 26 shards; files with holes for payload."""
    directory = tmp_path_factory.mktemp("published")
    return make(parse_options(["--names", "qwen3.6", "--headers-only", str(directory)]))


def test_all_1045_tensors_of_the_published_model_are_classified(published: Path) -> None:
    with Checkpoint.open(published) as checkpoint:
        assert len(checkpoint.tensors) == 1045
        assert checkpoint.unknown == []
        counts = Counter(
            str(t.identity.tensor_class) for t in checkpoint.tensors.values() if t.identity
        )
    assert counts == {
        "routed experts": 80,
        "shared experts": 160,
        "routers": 40,
        "attention": 40,
        "delta": 240,
        "embedding": 1,
        "head": 1,
        "norms": 131,
        "vision": 333,
        "mtp": 19,
    }


def test_bytes_and_bytes_per_token_are_the_published_model_s(published: Path) -> None:
    with Checkpoint.open(published) as checkpoint:
        lines = {line.tensor_class: line for line in summarize_checkpoint(checkpoint)}
    assert lines["routed experts"].nbytes == 60 << 30
    assert lines["routed experts"].bytes_per_token == 320 * (6 << 20)
    assert lines["embedding"].bytes_per_token == 2 * 2048
    assert lines["head"].bytes_per_token == lines["head"].nbytes == 2 * 248_320 * 2048
    assert lines["vision"].bytes_per_token == lines["mtp"].bytes_per_token == 0
    # The published files have 71,903,776,776 bytes, headers of unknown length included.
    assert 0 < 71_903_776_776 - sum(line.nbytes for line in lines.values()) < 200_000


def test_what_is_not_carried_is_named(published: Path) -> None:
    with Checkpoint.open(published) as checkpoint:
        names = not_carried(checkpoint)
    assert {tensor_class: len(found) for tensor_class, found in names.items()} == {
        "vision": 333,
        "mtp": 19,
    }
    assert "model.visual.blocks.{0..26}.attn.qkv.weight" in collapse_names(names["vision"])
    assert len(collapse_names(names["vision"])) == 12 + 9


def test_names_that_leave_out_a_number_are_not_shown_as_a_range() -> None:
    assert collapse_names(["a.0.b", "a.2.b", "c"]) == ["a.0.b", "a.2.b", "c"]


@pytest.mark.parametrize("prefix", ["model.language_model.", "model.", ""])
def test_canonical_names_do_not_depend_on_the_prefix(prefix: str) -> None:
    identity = find_identity(
        f"{prefix}layers.3.self_attn.q_proj.weight", get_family("qwen3_5_moe"), CONFIG
    )
    assert identity is not None
    assert (identity.canonical, identity.layer) == ("layers.3.self_attn.q_proj.weight", 3)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.weight",  # layer 0 has no attention
        "model.layers.3.linear_attn.A_log",
        "model.layers.4.input_layernorm.weight",
        "model.layers.00.input_layernorm.weight",
        "model.layers.-1.input_layernorm.weight",
        "model.layers.1.mlp.experts.x.gate_proj.weight",
        "model.layers.1.mlp.experts.20.gate_proj.weight",
        "model.layers.1.mlp.gate.bias",
        "model.layers.{layer}.input_layernorm.weight",
        "model.model.norm.weight",
        "norm.weight.0",
    ],
)
def test_tensors_that_nothing_claims_are_unknown(name: str) -> None:
    assert find_identity(name, get_family("qwen3_5_moe"), CONFIG) is None


def test_one_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    path = make(parse_options(["--tiny", "--layers", "1", "--shards", "1", str(tmp_path)]))
    file = path / "model.safetensors"
    raw = file.read_bytes()
    old, new = b'"model.language_model.layers.0.input_layernorm.weight"', b'"model.norm.weight"'
    file.write_bytes(raw.replace(old, new + b" " * (len(old) - len(new)), 1))
    with pytest.raises(CheckpointError, match="are the same tensor"):
        Checkpoint.open(path)


def test_unknown_family_is_named() -> None:
    with pytest.raises(UnsupportedError, match="'llama'"):
        get_family("llama")
