"""config.json as the rest of the program sees it: the text model's fields in one flat dictionary,
counts checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparseflow.checkpoint.json_file import read_json_object
from sparseflow.errors import CheckpointError, SparseFlowError, UnsupportedError

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 1 << 20
MODEL_TYPES = {
    "mixtral": "mixtral",
    "qwen3_5_moe": "qwen3_5_moe",
    "qwen3_5_moe_text": "qwen3_5_moe",
}
"""model_type in config.json -> family; vision-language and text-only checkpoints of one model share
a family.
"""
_FIELD_NAMES = {
    "mixtral": {"num_experts": "num_local_experts", "moe_intermediate_size": "intermediate_size"}
}
"""Family -> the rest of the program's name of a field: the family's own."""

_COUNTS = {
    "hidden_size": 1 << 16,
    "vocab_size": 1 << 24,
    "num_hidden_layers": 1 << 12,
    "num_experts": 1 << 14,
    "num_experts_per_tok": 1 << 10,
    "moe_intermediate_size": 1 << 16,
}


def read_text_config(
    directory: Path, error: type[SparseFlowError] = CheckpointError
) -> dict[str, Any]:
    """The fields of the text model in `directory`/config.json, Hugging Face's names, with
    `model_type` the family.

    Errors as `check_text_config`; also `error` for a damaged file.
    """
    path = directory / CONFIG_NAME
    return check_text_config(read_json_object(path, MAX_CONFIG_BYTES, error), path, error)


def check_text_config(
    raw: dict[str, Any], path: Path, error: type[SparseFlowError] = CheckpointError
) -> dict[str, Any]:
    """The fields of the text model in `raw`, the content of a config.json; `path` is for messages.

    Fields that families name differently have one name here. `layer_types` (one entry a layer) and
    `tie_word_embeddings` are always there. Raises `error` for a field that is wrong and
    UnsupportedError for a family or quantization that is not known.
    """
    _refuse_quantization(raw, path)
    text = raw.get("text_config", raw)
    if not isinstance(text, dict):
        raise error(f"{path}: text_config is not an object")
    _refuse_quantization(text, path)
    model_type = text.get("model_type", raw.get("model_type"))
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise UnsupportedError(
            f"{path}: unknown model_type {model_type!r}; known: {', '.join(sorted(MODEL_TYPES))}"
        )
    config = {**text, "model_type": MODEL_TYPES[model_type]}
    config["tie_word_embeddings"] = bool(
        raw.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    )
    names = _FIELD_NAMES.get(config["model_type"], {})
    for name, most in _COUNTS.items():
        config[name] = get_count(config, names.get(name, name), most, where=str(path), error=error)
    if config.get("head_dim") is None and config["model_type"] == "mixtral":
        heads = get_count(config, "num_attention_heads", where=str(path), error=error)
        config["head_dim"] = config["hidden_size"] // heads
    if config["num_experts_per_tok"] > config["num_experts"]:
        raise error(f"{path}: num_experts_per_tok is above num_experts")
    config["layer_types"] = _layer_types(config, path, error)
    return config


def rotary_parameters(
    config: dict[str, Any], error: type[SparseFlowError] = CheckpointError
) -> tuple[float, int]:
    """theta and the number of rotary channels of a head, from a text configuration.

    Raises `error` for values out of range, UnsupportedError for anything but plain rotary
    embeddings.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise error("config.json: rope_parameters is not an object")
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise UnsupportedError(
            f"config.json: rope_type {str(kind)[:40]!r} is not supported; known: default"
        )
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if not isinstance(theta, int | float) or not 1 <= theta <= 1e12:
        raise error(f"config.json: rope_theta {str(theta)[:40]} is not a number from 1 to 1e12")
    if not isinstance(partial, int | float) or not 0 < partial <= 1:
        raise error(
            f"config.json: partial_rotary_factor {str(partial)[:40]} is not above 0 and at most 1"
        )
    rotary_dim = int(get_count(config, "head_dim", where="config.json", error=error) * partial)
    if rotary_dim < 2 or rotary_dim % 2:
        raise error(f"config.json: {rotary_dim} rotary channels; an even number was expected")
    return theta, rotary_dim


def get_count(
    config: dict[str, Any],
    name: str,
    most: int = 1 << 24,
    *,
    where: str,
    error: type[SparseFlowError] = CheckpointError,
) -> int:
    """The field `name`, which must be an integer from 1 to `most`."""
    value = config.get(name)
    if type(value) is not int or not 1 <= value <= most:
        raise error(
            f"{where}: {name} is {str(value)[:40]}; an integer from 1 to {most} was expected"
        )
    return value


def _layer_types(config: dict[str, Any], path: Path, error: type[SparseFlowError]) -> list[str]:
    num_layers: int = config["num_hidden_layers"]
    if config["model_type"] == "mixtral":
        return ["full_attention"] * num_layers
    layer_types = config.get("layer_types")
    if layer_types is None:
        interval = get_count(
            {"full_attention_interval": 4, **config},
            "full_attention_interval",
            where=str(path),
            error=error,
        )
        return [
            "linear_attention" if (i + 1) % interval else "full_attention"
            for i in range(num_layers)
        ]
    known = ("linear_attention", "full_attention")
    if (
        not isinstance(layer_types, list)
        or len(layer_types) != num_layers
        or any(t not in known for t in layer_types)
    ):
        raise error(
            f"{path}: layer_types must name one of {', '.join(known)} for each of the"
            f" {num_layers} layers"
        )
    return layer_types


def _refuse_quantization(fields: dict[str, Any], path: Path) -> None:
    quantization = fields.get("quantization_config", fields.get("compression_config"))
    if quantization is not None:
        method = (
            quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        )
        raise UnsupportedError(
            f"{path}: the checkpoint is quantized ({str(method)[:40]!r}), which is not read; use"
            " the BF16 checkpoint"
        )
