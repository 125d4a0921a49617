"""Names, shapes and shards of synthetic qwen3_5_moe checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparseflow.checkpoint.tensor_classes import Family, expected_tensors, get_family

PREFIX = "model.language_model."
TRUE_LAYERS, TRUE_VOCAB = 40, 248_320

SIZES = {
    "true": {
        "hidden_size": 2048,
        "head_dim": 256,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    # Multiples of neither 64 nor, where the kernels allow it, 16.
    "tiny": {
        "hidden_size": 72,
        "head_dim": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "num_experts": 20,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 24,
    },
    # The smallest in which the chain's reserved channels and neurons have room.
    "tiny-chain": {
        "hidden_size": 512,
        "head_dim": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "num_experts": 24,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
    },
    # Every row is whole groups of 64 inputs: for measuring formats.
    "medium": {
        "hidden_size": 1024,
        "head_dim": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "num_experts": 24,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256,
    },
}
"""By name of the geometry."""


@dataclass(frozen=True)
class Tensor:
    """One tensor to write, always BF16."""

    name: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Of the payload."""
        return 2 * int(np.prod(self.shape, dtype=np.int64))


def text_config(num_layers: int, vocab_size: int, geometry: str = "true") -> dict[str, Any]:
    """The text model's part of config.json; `geometry` is a name in SIZES."""
    return {
        "model_type": "qwen3_5_moe_text",
        **SIZES[geometry],
        "num_hidden_layers": num_layers,
        "layer_types": [
            "linear_attention" if (i + 1) % 4 else "full_attention" for i in range(num_layers)
        ],
        "vocab_size": vocab_size,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
        },
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attn_output_gate": True,
        "max_position_embeddings": 262_144,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def text_tensors(config: dict[str, Any], *, is_fused: bool) -> list[Tensor]:
    """The text model's tensors: 18 for each delta layer, 15 for each attention layer (fused), and three."""
    family = get_family("qwen3_5_moe")
    dims = family.dimensions(config)
    tensors = []
    for name, row in expected_tensors(family, config["layer_types"]).items():
        published = name if name == "lm_head.weight" else PREFIX + name
        tensors.append(Tensor(published, tuple(dims[dim] for dim in row.shape)))
    for layer in range(config["num_hidden_layers"]):
        tensors += _expert_tensors(family, dims, PREFIX, layer, is_fused=is_fused)
    return tensors


def _expert_tensors(
    family: Family, dims: dict[str, int], prefix: str, layer: int, *, is_fused: bool
) -> Iterator[Tensor]:
    rows = family.fused_experts if is_fused else family.unfused_experts
    for expert in range(1 if is_fused else dims["num_experts"]):
        for row in rows:
            name = row.name.replace("{layer}", str(layer)).replace("{expert}", str(expert))
            yield Tensor(prefix + name, tuple(dims[dim] for dim in row.shape))


def mtp_tensors(config: dict[str, Any]) -> list[Tensor]:
    """The 19 of the multi-token prediction head: an attention layer's 15, and four."""
    hidden = config["hidden_size"]
    one_layer = {**config, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    layer = [t for t in text_tensors(one_layer, is_fused=True) if ".layers.0." in t.name]
    return [
        Tensor("mtp.fc.weight", (hidden, 2 * hidden)),
        Tensor("mtp.norm.weight", (hidden,)),
        Tensor("mtp.pre_fc_norm_embedding.weight", (hidden,)),
        Tensor("mtp.pre_fc_norm_hidden.weight", (hidden,)),
        *(Tensor("mtp." + tensor.name.removeprefix(PREFIX), tensor.shape) for tensor in layer),
    ]


def visual_tensors(config: dict[str, Any], *, is_tiny: bool) -> list[Tensor]:
    """The 333 of the vision tower: 27 blocks of 12, and nine."""
    width, inner, positions = (16, 24, 16) if is_tiny else (1152, 4304, 2304)
    merged = 4 * width
    block = {
        "norm1.weight": (width,),
        "norm1.bias": (width,),
        "norm2.weight": (width,),
        "norm2.bias": (width,),
        "attn.qkv.weight": (3 * width, width),
        "attn.qkv.bias": (3 * width,),
        "attn.proj.weight": (width, width),
        "attn.proj.bias": (width,),
        "mlp.linear_fc1.weight": (inner, width),
        "mlp.linear_fc1.bias": (inner,),
        "mlp.linear_fc2.weight": (width, inner),
        "mlp.linear_fc2.bias": (width,),
    }
    rest = {
        "patch_embed.proj.weight": (width, 3, 2, 16, 16),
        "patch_embed.proj.bias": (width,),
        "pos_embed.weight": (positions, width),
        "merger.norm.weight": (width,),
        "merger.norm.bias": (width,),
        "merger.linear_fc1.weight": (merged, merged),
        "merger.linear_fc1.bias": (merged,),
        "merger.linear_fc2.weight": (config["hidden_size"], merged),
        "merger.linear_fc2.bias": (config["hidden_size"],),
    }
    blocks = {f"blocks.{i}.{name}": shape for i in range(27) for name, shape in block.items()}
    return [Tensor("model.visual." + name, shape) for name, shape in {**blocks, **rest}.items()]


def assign_shards(
    tensors: list[Tensor], num_shards: int, seed: int, *, is_adversarial: bool
) -> list[list[Tensor]]:
    """Which shard holds what, in order.

    Adversarial: shuffled, and down_proj of a layer's experts half of all shards away from gate_up_proj.
    """
    if not is_adversarial:
        total, done = sum(tensor.nbytes for tensor in tensors), 0
        shards: list[list[Tensor]] = [[] for _ in range(num_shards)]
        for tensor in tensors:
            shards[min(num_shards - 1, done * num_shards // total)].append(tensor)
            done += tensor.nbytes
        return [shard for shard in shards if shard]
    random = np.random.Generator(np.random.Philox(key=seed))
    shards = [[] for _ in range(num_shards)]
    for position in random.permutation(len(tensors)):
        tensor = tensors[int(position)]
        home = int.from_bytes(hashlib.sha256(tensor.name.encode()).digest()[:4], "little")
        if ".experts." in tensor.name:
            prefix = tensor.name.partition(".experts.")[0]
            home = int.from_bytes(hashlib.sha256(prefix.encode()).digest()[:4], "little")
            home += num_shards // 2 if "down_proj" in tensor.name else 0
        shards[home % num_shards].append(tensor)
    return [shard for shard in shards if shard]
