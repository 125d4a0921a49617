"""config.json: text models and vision-language models read alike; what is out of range is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparseflow.checkpoint.model_config import read_text_config, rotary_parameters
from sparseflow.errors import CheckpointError, UnsupportedError
from synthetic.layout import text_config

TEXT = text_config(4, 331, "tiny")


def read(directory: Path, config: Any) -> dict[str, Any]:
    text = config if isinstance(config, str) else json.dumps(config)
    (directory / "config.json").write_text(text)
    return read_text_config(directory)


def test_nested_and_flat_configurations_read_alike(tmp_path: Path) -> None:
    flat = read(tmp_path, TEXT)
    nested = read(tmp_path, {"model_type": "qwen3_5_moe", "text_config": TEXT, "vision_config": {}})
    assert flat == nested
    assert flat["model_type"] == "qwen3_5_moe"


def test_layer_types_follow_the_interval_if_they_are_not_listed(tmp_path: Path) -> None:
    text = {key: value for key, value in TEXT.items() if key != "layer_types"}
    assert read(tmp_path, text)["layer_types"] == TEXT["layer_types"]
    assert (
        read(tmp_path, {**text, "full_attention_interval": 2})["layer_types"][1] == "full_attention"
    )


def test_tied_embeddings_are_read_from_either_level(tmp_path: Path) -> None:
    assert read(tmp_path, {**TEXT, "tie_word_embeddings": True})["tie_word_embeddings"] is True
    outer = {"model_type": "qwen3_5_moe", "text_config": TEXT, "tie_word_embeddings": True}
    assert read(tmp_path, outer)["tie_word_embeddings"] is True


@pytest.mark.parametrize("where", ["outer", "inner"])
def test_quantized_checkpoint_is_refused_by_the_name_of_its_method(
    tmp_path: Path, where: str
) -> None:
    quantized = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    inner = {**TEXT, **(quantized if where == "inner" else {})}
    outer = {
        "model_type": "qwen3_5_moe",
        "text_config": inner,
        **(quantized if where == "outer" else {}),
    }
    with pytest.raises(UnsupportedError, match="'fp8'"):
        read(tmp_path, outer)


@pytest.mark.parametrize("model_type", ["llama", None, 7, ["qwen3_5_moe"]])
def test_unknown_family_is_refused(tmp_path: Path, model_type: object) -> None:
    with pytest.raises(UnsupportedError, match="unknown model_type"):
        read(tmp_path, {**TEXT, "model_type": model_type})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", -72),
        ("hidden_size", 72.0),
        ("hidden_size", True),
        ("hidden_size", "72"),
        ("hidden_size", 1 << 40),
        ("num_experts", None),
        ("num_experts_per_tok", 21),
        ("num_hidden_layers", 1 << 20),
        ("layer_types", ["linear_attention"]),
        ("layer_types", ["sliding_attention"] * 4),
        ("layer_types", "linear_attention"),
    ],
)
def test_field_out_of_range_is_named(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=field):
        read(tmp_path, {**TEXT, field: value})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"a": NaN}',
        '{"a": 1, "a": 2}',
        '{"text_config": []}',
        "[" * 100_000,
        "[" + "[]," * 150_000 + "[]]",
        " " * (2 << 20),
    ],
    ids=["empty", "list", "cut", "nan", "duplicate", "no_object", "deep", "many_values", "long"],
)
def test_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read(tmp_path, text)


def test_rotary_parameters_of_either_place() -> None:
    assert rotary_parameters(
        {"head_dim": 256, "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25}}
    ) == (
        1e7,
        64,
    )
    assert rotary_parameters(
        {"head_dim": 64, "rope_theta": 5000, "partial_rotary_factor": 0.5}
    ) == (5000, 32)


@pytest.mark.parametrize(
    ("rope", "error"),
    [
        ({"rope_type": "yarn"}, UnsupportedError),
        ({"rope_theta": 0}, CheckpointError),
        ({"rope_theta": "x"}, CheckpointError),
        ({"partial_rotary_factor": 1.5}, CheckpointError),
        ({"partial_rotary_factor": 0.01}, CheckpointError),
    ],
)
def test_rotary_parameters_out_of_range_are_refused(
    rope: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"config\.json"):
        rotary_parameters({"head_dim": 64, "rope_parameters": rope})
