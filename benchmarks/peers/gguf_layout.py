"""A qwen3_5_moe checkpoint as GGUF, architecture `qwen35moe`: names, shapes, types and metadata.

What llama.cpp's own converter does to the values, found by comparing its output with its input: norms hold 1 + weight,
except the delta layers' output norm; A_log becomes -exp(A_log); a convolution [channels, 1, kernel] loses its middle
dimension; value heads, grouped by key head in a checkpoint, go round the key heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from sparseflow.checkpoint.model_config import rotary_parameters
from sparseflow.checkpoint.tensor_classes import expected_tensors, get_family

ARCHITECTURE = "qwen35moe"
FILE_TYPES = {
    Type.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0,
    Type.Q4_0: gguf.LlamaFileType.MOSTLY_Q4_0,
    Type.BF16: gguf.LlamaFileType.MOSTLY_BF16,
    Type.F16: gguf.LlamaFileType.MOSTLY_F16,
}
ROPE_SECTIONS = [11, 11, 10, 0]
"""Of multi-axis positions; they have no effect on text, whose positions are equal on all axes."""

_NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}
_FLOAT32 = ("mlp.gate.weight", "mlp.shared_expert_gate.weight", "linear_attn.conv1d.weight")
_EXPERT_NAMES = ("ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight")


@dataclass(frozen=True)
class DenseTensor:
    """A tensor that is not of routed experts."""

    name: str
    canonical: str
    """Of the checkpoint's tensor."""
    source_shape: tuple[int, ...]
    shape: tuple[int, ...]
    """Slowest dimension first, as NumPy has it; GGUF writes it the other way round."""
    type: Type


@dataclass(frozen=True)
class ExpertTensor:
    """One projection of all experts of a layer."""

    name: str
    layer: int
    projection: int
    """gate 0, up 1, down 2."""
    shape: tuple[int, int, int]
    type: Type


def gguf_tensors(config: Mapping[str, Any], expert_type: Type) -> list[DenseTensor | ExpertTensor]:
    """Every tensor of the file, in its order: dense matrices in Q8_0, or in the experts' type if that is a float, small
    tensors in float32.
    """
    dense_type = expert_type if expert_type in (Type.BF16, Type.F16) else Type.Q8_0
    family = get_family("qwen3_5_moe")
    dims = family.dimensions(dict(config))
    tensors: list[DenseTensor | ExpertTensor] = []
    for canonical, row in expected_tensors(family, config["layer_types"]).items():
        shape = tuple(dims[dim] for dim in row.shape)
        stored = shape if len(shape) < 3 else (shape[0], shape[2])
        is_float = len(stored) == 1 or canonical.endswith(_FLOAT32)
        name = gguf_name(canonical)
        tensors.append(
            DenseTensor(name, canonical, shape, stored, Type.F32 if is_float else dense_type)
        )
    experts, hidden, inner = (
        dims[name] for name in ("num_experts", "hidden_size", "moe_intermediate_size")
    )
    shapes = ((experts, inner, hidden), (experts, inner, hidden), (experts, hidden, inner))
    for layer in range(len(config["layer_types"])):
        for projection, (name, shape3) in enumerate(zip(_EXPERT_NAMES, shapes, strict=True)):
            tensors.append(
                ExpertTensor(f"blk.{layer}.{name}", layer, projection, shape3, expert_type)
            )
    return tensors


def gguf_name(canonical: str) -> str:
    """The name in a GGUF file of a tensor that is not of routed experts."""
    if not canonical.startswith("layers."):
        return _NAMES[canonical]
    _, layer, part = canonical.split(".", 2)
    return f"blk.{layer}.{_NAMES[part]}"


def value_head_order(config: Mapping[str, Any]) -> NDArray[np.intp]:
    """Which value head of the checkpoint stands at each place of a GGUF file."""
    num_keys = config["linear_num_key_heads"]
    num_values = config["linear_num_value_heads"]
    order: NDArray[np.intp] = np.arange(num_values).reshape(num_keys, -1).T.reshape(-1)
    return order


def metadata(config: Mapping[str, Any], expert_type: Type) -> list[tuple[str, Any, str]]:
    """(key, value, kind) of the file; kind is `u32`, `f32`, `str` or `array`. No tokenizer: ids go in and out."""
    theta, rotary_dim = rotary_parameters(dict(config))
    value_heads = config["linear_num_value_heads"]
    recurrent = [kind == "linear_attention" for kind in config["layer_types"]]
    counts = {
        "block_count": len(recurrent),
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "vocab_size": config["vocab_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "rope.dimension_count": rotary_dim,
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": value_heads,
        "ssm.inner_size": value_heads * config["linear_value_head_dim"],
        "full_attention_interval": 4,
    }
    return [
        ("general.type", "model", "str"),
        ("general.name", "sparseflow benchmark checkpoint", "str"),
        ("general.file_type", int(FILE_TYPES[expert_type]), "u32"),
        ("general.quantization_version", gguf.GGML_QUANT_VERSION, "u32"),
        *((f"{ARCHITECTURE}.{key}", value, "u32") for key, value in counts.items()),
        (f"{ARCHITECTURE}.rope.freq_base", float(theta), "f32"),
        (f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", config["rms_norm_eps"], "f32"),
        (f"{ARCHITECTURE}.attention.recurrent_layers", recurrent, "array"),
        (f"{ARCHITECTURE}.rope.dimension_sections", ROPE_SECTIONS, "array"),
        ("tokenizer.ggml.model", "none", "str"),
    ]
