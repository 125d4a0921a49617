"""A GGUF file's metadata as config.json would say it: Hugging Face's names and meanings.

Sources: the key names that the gguf package documents (`gguf.constants.Keys`), and files made by llama.cpp's converter
of checkpoints whose config.json is known.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

from sparseflow.checkpoint.gguf.header import StoredTensor
from sparseflow.checkpoint.model_config import get_count
from sparseflow.errors import CheckpointError, UnsupportedError

ARCHITECTURES = {"qwen35moe": "qwen3_5_moe", "llama": "mixtral"}
"""general.architecture -> model_type; a llama file is read if it has experts."""
MAX_LAYERS = 1 << 12
_SOFTMAX_GATING = 1


class Metadata:
    """The numbers of one architecture, by key without its prefix. Every method raises CheckpointError for a value that
    is missing or not what it should be.
    """

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        """Raises UnsupportedError for an architecture that is not read."""
        self.path = path
        self.values = values
        self.architecture = str(values.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise UnsupportedError(
                f"{path}: unknown architecture {self.architecture[:40]!r};"
                f" known: {', '.join(sorted(ARCHITECTURES))}"
            )

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it is, or `default`."""
        return self.values.get(f"{self.architecture}.{key}", default)

    def count(self, key: str, default: int | None = None, most: int = 1 << 24) -> int:
        """An integer from 1 to `most`; of a list with one for each layer, the one that all layers with any have."""
        value = self.get(key, default)
        if isinstance(value, list):
            others = {item for item in value if item != 0}
            value = others.pop() if len(others) == 1 else value
        name = f"{self.architecture}.{key}"
        return get_count({name: value}, name, most, where=f"{self.path}: metadata")

    def number(self, key: str) -> float:
        """A float, as the decimal with the fewest digits that its float32 is nearest to."""
        value = self.get(key)
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not math.isfinite(value)
        ):
            raise CheckpointError(
                f"{self.path}: metadata: {self.architecture}.{key} is {str(value)[:40]}; a number"
                " was expected"
            )
        return shortest_decimal(float(value))


def shortest_decimal(value: float) -> float:
    """1e-06 for the float32 nearest to it, which is 9.999999974752427e-07."""
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.unpack("<f", struct.pack("<f", short))[0] == value:
                return short
        except OverflowError:
            continue
    return value


def read_config(
    path: Path, values: dict[str, Any], tensors: dict[str, StoredTensor]
) -> dict[str, Any]:
    """config.json of the model in a GGUF file with these metadata and tensors.

    Raises CheckpointError for a field that is missing or wrong, UnsupportedError for a model that is not read.
    """
    metadata = Metadata(path, values)
    _refuse_variants(metadata)
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{path}: tensor 'token_embd.weight' is missing or no matrix")
    config: dict[str, Any] = {
        "vocab_size": embedding.shape[0],
        "hidden_size": metadata.count("embedding_length"),
        "num_attention_heads": metadata.count("attention.head_count"),
        "num_key_value_heads": metadata.count("attention.head_count_kv"),
        "num_experts_per_tok": metadata.count("expert_used_count"),
        "max_position_embeddings": metadata.count("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "hidden_act": "silu",
        "attention_bias": False,
    }
    if metadata.architecture == "qwen35moe":
        config |= _qwen3_5_moe(metadata, tensors)
    else:
        config |= _mixtral(metadata, config["hidden_size"] // config["num_attention_heads"])
    for name in ("bos", "eos"):
        token_id = values.get(f"tokenizer.ggml.{name}_token_id")
        if type(token_id) is int:
            config[f"{name}_token_id"] = token_id
    return config


def _refuse_variants(metadata: Metadata) -> None:
    expected = {
        "rope.scaling.type": ("none", None),
        "expert_gating_func": (_SOFTMAX_GATING, None),
        "expert_weights_scale": (0, 1, None),
        "attn_logit_softcapping": (0, None),
        "final_logit_softcapping": (0, None),
        "expert_group_count": (0, 1, None),
    }
    for key, known in expected.items():
        value = metadata.get(key)
        if value not in known:
            raise UnsupportedError(
                f"{metadata.path}: {metadata.architecture}.{key} is {str(value)[:40]!r}, which is"
                " not supported"
            )


def _qwen3_5_moe(metadata: Metadata, tensors: dict[str, StoredTensor]) -> dict[str, Any]:
    head_dim = metadata.count("attention.key_length")
    value_heads, inner = metadata.count("ssm.time_step_rank"), metadata.count("ssm.inner_size")
    if inner % value_heads or metadata.count("attention.value_length", head_dim) != head_dim:
        raise CheckpointError(
            f"{metadata.path}: metadata: sizes of heads do not fit together (ssm.inner_size,"
            " ssm.time_step_rank, attention.key_length, attention.value_length)"
        )
    num_layers = _num_layers(metadata, tensors)
    return {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe",
        "num_hidden_layers": num_layers,
        "layer_types": _layer_types(metadata, num_layers),
        "head_dim": head_dim,
        "linear_num_key_heads": metadata.count("ssm.group_count"),
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": metadata.count("ssm.state_size"),
        "linear_value_head_dim": inner // value_heads,
        "linear_conv_kernel_dim": metadata.count("ssm.conv_kernel"),
        "num_experts": metadata.count("expert_count"),
        "moe_intermediate_size": metadata.count("expert_feed_forward_length"),
        "shared_expert_intermediate_size": metadata.count("expert_shared_feed_forward_length"),
        "attn_output_gate": True,
        "rope_parameters": _rope(metadata, head_dim),
    }


def _mixtral(metadata: Metadata, default_head_dim: int) -> dict[str, Any]:
    if not metadata.get("expert_count"):
        raise UnsupportedError(
            f"{metadata.path}: a llama model without experts; mixture-of-experts models are read"
        )
    head_dim = metadata.count("attention.key_length", default_head_dim)
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_hidden_layers": metadata.count("block_count", most=MAX_LAYERS),
        "head_dim": head_dim,
        "num_local_experts": metadata.count("expert_count"),
        "intermediate_size": metadata.count(
            "expert_feed_forward_length", metadata.get("feed_forward_length")
        ),
        "sliding_window": metadata.get("attention.sliding_window") or None,
        "rope_parameters": _rope(metadata, head_dim),
    }


def _rope(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    """Positions on several axes (rope.dimension_sections) are equal in text, and so are plain ones."""
    rotary_dim = metadata.count("rope.dimension_count", head_dim)
    factor = rotary_dim / head_dim
    while int(head_dim * factor) < rotary_dim:  # a quotient that was rounded down
        factor = math.nextafter(factor, 2)
    theta = metadata.number("rope.freq_base") if metadata.get("rope.freq_base") else 10000.0
    return {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": factor}


def _num_layers(metadata: Metadata, tensors: dict[str, StoredTensor]) -> int:
    """block_count also counts the blocks that predict further tokens, which come last."""
    blocks = metadata.count("block_count", most=MAX_LAYERS)
    further = {name.split(".")[1] for name in tensors if ".nextn." in name}
    while str(blocks - 1) in further and blocks > 1:
        blocks -= 1
    return blocks


def _layer_types(metadata: Metadata, num_layers: int) -> list[str]:
    names = ("full_attention", "linear_attention")
    recurrent = metadata.get("attention.recurrent_layers")
    if isinstance(recurrent, list):
        if len(recurrent) < num_layers or not all(isinstance(item, bool) for item in recurrent):
            raise CheckpointError(
                f"{metadata.path}: metadata: attention.recurrent_layers must say yes or no for each"
                f" of the {num_layers} layers"
            )
        return [names[item] for item in recurrent[:num_layers]]
    interval = metadata.count("full_attention_interval", 4)
    return [names[(i + 1) % interval != 0] for i in range(num_layers)]
