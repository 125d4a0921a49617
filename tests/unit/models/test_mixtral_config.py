"""Mixtral's configuration as published and as newer tools write it; what would compute otherwise is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparseflow.checkpoint.model_config import read_text_config, rotary_parameters
from sparseflow.errors import CheckpointError, ContainerError, SparseFlowError, UnsupportedError
from sparseflow.models.mixtral_config import MixtralConfig

TINY = Path(__file__).parents[2] / "golden" / "tiny_mixtral"
PUBLISHED = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mixtral",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "vocab_size": 32000,
}


def read(directory: Path, **changes: Any) -> dict[str, Any]:
    config = json.loads((TINY / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps(config))
    return read_text_config(directory)


def test_the_published_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    text = read_text_config(tmp_path)
    config = MixtralConfig.from_dict(text)
    assert (config.num_experts, config.moe_intermediate_size) == (8, 14336)
    assert config.head_dim == 128
    assert rotary_parameters(text) == (1e6, 128)
    assert text["layer_types"] == ["full_attention"] * 32
    assert config.state_bytes(8192, 2) == 32 * 2 * 8 * 128 * 8192 * 2


@pytest.mark.parametrize("window", [512, 4096])
def test_a_window_that_hides_nothing_is_accepted(tmp_path: Path, window: int) -> None:
    assert MixtralConfig.from_dict(read(tmp_path, sliding_window=window)).num_experts == 11


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"sliding_window": 511}, "sliding_window 511"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "rope_type"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ],
)
def test_variants_that_compute_something_else_are_unsupported_by_name(
    tmp_path: Path, changes: dict[str, Any], name: str
) -> None:
    with pytest.raises(UnsupportedError, match=name):
        MixtralConfig.from_dict(read(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "kind", "name"),
    [
        ({"num_local_experts": 0}, CheckpointError, "num_local_experts"),
        ({"num_local_experts": None}, CheckpointError, "num_local_experts"),
        ({"intermediate_size": "40"}, CheckpointError, "intermediate_size"),
        ({"num_experts_per_tok": 12}, CheckpointError, "num_experts_per_tok"),
        ({"head_dim": None, "num_attention_heads": 0}, CheckpointError, "num_attention_heads"),
        ({"num_key_value_heads": 4}, ContainerError, "not a multiple"),
        ({"head_dim": 47}, ContainerError, "47 rotary channels"),
        ({"max_position_embeddings": True}, ContainerError, "max_position_embeddings"),
        ({"rms_norm_eps": 0}, ContainerError, "rms_norm_eps"),
        ({"rope_parameters": [1]}, ContainerError, "rope_parameters"),
        ({"sliding_window": "wide"}, ContainerError, "sliding_window"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], kind: type[SparseFlowError], name: str
) -> None:
    with pytest.raises(kind, match=name):
        MixtralConfig.from_dict(read(tmp_path, **changes))
