from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparseflow.errors import ContainerError, UnsupportedError
from sparseflow.models.qwen3_5_moe_config import Qwen3_5MoeConfig

TINY = Path(__file__).parents[2] / "golden" / "tiny"


def tiny(**changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((TINY / "config.json").read_text())
    return config | changes


def test_flat_and_nested_configurations_are_one() -> None:
    flat = Qwen3_5MoeConfig.from_dict(tiny())
    assert Qwen3_5MoeConfig.from_dict({"model_type": "qwen3_5_moe", "text_config": tiny()}) == flat
    assert flat.rotary_dim == 8
    assert flat.layer_types == ("linear_attention",) * 3 + ("full_attention",)


def test_every_fourth_layer_is_attention_if_no_list_says_otherwise() -> None:
    config = Qwen3_5MoeConfig.from_dict(tiny(layer_types=None, num_hidden_layers=8))
    assert [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"] == [3, 7]


@pytest.mark.parametrize(
    "field", ["hidden_size", "num_experts", "vocab_size", "head_dim", "linear_key_head_dim"]
)
@pytest.mark.parametrize("value", [0, -3, 2**40, "84", None, 1.5, True])
def test_sizes_must_be_positive_integers(field: str, value: object) -> None:
    with pytest.raises(ContainerError, match=field):
        Qwen3_5MoeConfig.from_dict(tiny(**{field: value}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"linear_num_key_heads": 3}, "not a multiple"),
        ({"num_experts_per_tok": 13}, "num_experts_per_tok"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"layer_types": ["full_attention"]}, "4 layers"),
        ({"rope_parameters": {"partial_rotary_factor": 0.3}}, "rotary"),
        ({"text_config": 3}, "text_config"),
    ],
)
def test_what_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ContainerError, match=message):
        Qwen3_5MoeConfig.from_dict(tiny(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"attn_output_gate": False},
        {"rope_parameters": {"rope_type": "yarn", "partial_rotary_factor": 0.25}},
        {"mlp_only_layers": [0]},
        {"layer_types": ["sliding_attention"] * 4},
    ],
)
def test_variants_that_compute_something_else_are_unsupported(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        Qwen3_5MoeConfig.from_dict(tiny(**changes))
