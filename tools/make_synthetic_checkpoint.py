"""Writes qwen3_5_moe checkpoints with seeded random BF16 weights, shard by shard with little memory.

    python tools/make_synthetic_checkpoint.py --tiny DIR                    small dimensions, odd tails
    python tools/make_synthetic_checkpoint.py --names qwen3.6 --tiny DIR    the published model's 1,045 tensor names
    python tools/make_synthetic_checkpoint.py --names qwen3.6 --headers-only DIR    its true shapes, sparse files
    python tools/make_synthetic_checkpoint.py --true-geometry --layers 8 --vocab 32768 DIR

Every tensor's values depend on the seed and its name alone, so order and number of shards do not change them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparseflow.checkpoint.tensor_classes import Family, expected_tensors, get_family

PREFIX = "model.language_model."
BLOCK_VALUES = 1 << 21
TRUE_LAYERS, TRUE_VOCAB = 40, 248_320
PUBLISHED_SHARDS = 26


@dataclass(frozen=True)
class Tensor:
    """One tensor to write, always BF16."""

    name: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Of the payload."""
        return 2 * int(np.prod(self.shape, dtype=np.int64))


def text_config(num_layers: int, vocab_size: int, *, is_tiny: bool) -> dict[str, Any]:
    """The text model's part of config.json.

    Tiny dimensions are multiples of neither 64 nor, where the kernels allow it, 16.
    """
    sizes: dict[str, Any] = {
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
    }
    tiny: dict[str, Any] = {
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
    }
    return {
        "model_type": "qwen3_5_moe_text",
        **(tiny if is_tiny else sizes),
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


def value_blocks(tensor: Tensor, seed: int) -> Iterator[NDArray[np.uint16]]:
    """BF16 bit patterns of a tensor, some at a time. Matrices keep the size of their inputs; blocks add little each."""
    digest = hashlib.sha256(f"{seed}:{tensor.name}".encode()).digest()
    random = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    mean, deviation = _moments(tensor)
    count = tensor.nbytes // 2
    for begin in range(0, count, BLOCK_VALUES):
        values = random.standard_normal(min(BLOCK_VALUES, count - begin), np.float32)
        values *= np.float32(deviation)
        values += np.float32(mean)
        yield to_bf16(values)


def _moments(tensor: Tensor) -> tuple[float, float]:
    """Mean and deviation of a tensor's values."""
    name = tensor.name
    if name.endswith("A_log"):
        return -1.0, 0.5
    if name.endswith("dt_bias"):
        return -2.0, 1.0  # with A_log: decays of about .8 to .999
    if name.endswith("linear_attn.norm.weight"):
        return 1.0, 0.05
    if len(tensor.shape) == 1:
        return 0.0, 0.05  # norms multiply by 1 + weight
    if name.endswith("embed_tokens.weight"):
        return 0.0, 1.0
    if name.endswith("conv1d.weight"):
        return 0.0, 0.5
    gain = (
        0.5
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj", "down_proj.weight"))
        else 1.0
    )
    gain *= 2.0 if name.endswith((".mlp.gate.weight", "lm_head.weight")) else 1.0
    return 0.0, gain * float(tensor.shape[-1]) ** -0.5


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    return (
        (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    ).astype(np.uint16)


def write_shard(path: Path, tensors: list[Tensor], seed: int, *, is_empty: bool) -> None:
    """One safetensors file; if `is_empty`, with a hole where the payload would be."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        if is_empty:
            file.truncate(8 + len(text) + offset)
            return
        for tensor in tensors:
            for block in value_blocks(tensor, seed):
                file.write(block.data)


def word_tokenizer(vocab_size: int) -> dict[str, Any]:
    """A tokenizer.json in which the word `t17` is the token 17, so that text names token ids."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {f"t{i}": i for i in range(vocab_size)},
            "unk_token": "t0",
        },
    }


def write_checkpoint(
    directory: Path,
    config: dict[str, Any],
    shards: list[list[Tensor]],
    seed: int,
    *,
    is_empty: bool,
) -> None:
    """config.json, a tokenizer, the shards, and the index if there is more than one."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    vocab_size = config.get("text_config", config)["vocab_size"]
    (directory / "tokenizer.json").write_text(json.dumps(word_tokenizer(vocab_size)) + "\n")
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        name = (
            f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            if len(shards) > 1
            else "model.safetensors"
        )
        weight_map.update(dict.fromkeys((tensor.name for tensor in tensors), name))
        write_shard(directory / name, tensors, seed, is_empty=is_empty)
    if len(shards) > 1:
        total = sum(tensor.nbytes for tensors in shards for tensor in tensors)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def make(options: argparse.Namespace) -> Path:
    """Writes what the options ask for."""
    is_published = options.names is not None
    layers = options.layers or (TRUE_LAYERS if is_published else 4 if options.tiny else 8)
    vocab = options.vocab or (331 if options.tiny else TRUE_VOCAB if is_published else 32_768)
    text = text_config(layers, vocab, is_tiny=options.tiny)
    tensors = text_tensors(text, is_fused=not options.unfused)
    config: dict[str, Any] = {"architectures": ["Qwen3_5MoeForCausalLM"], **text}
    if is_published:
        tensors += visual_tensors(text, is_tiny=options.tiny) + mtp_tensors(text)
        config = {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": "qwen3_5_moe",
            "text_config": text,
            "tie_word_embeddings": False,
        }
    num_shards = options.shards or (PUBLISHED_SHARDS if is_published else max(2, layers // 2))
    order = options.order or ("adversarial" if is_published else "natural")
    shards = assign_shards(tensors, num_shards, options.seed, is_adversarial=order == "adversarial")
    write_checkpoint(options.directory, config, shards, options.seed, is_empty=options.headers_only)
    return Path(options.directory)


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """The command line; refuses what would write the whole published model by accident."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tiny", action="store_true", help="small dimensions, odd tails")
    parser.add_argument(
        "--true-geometry", action="store_true", help="the published model's dimensions"
    )
    parser.add_argument(
        "--names",
        choices=["qwen3.6"],
        help="all tensors of the published model, vision and MTP too",
    )
    parser.add_argument(
        "--headers-only", action="store_true", help="sparse files: true sizes, no payload"
    )
    parser.add_argument("--layers", type=int, help="default 8; 4 if tiny; 40 with --names")
    parser.add_argument("--vocab", type=int, help="default 32768; 331 if tiny; 248320 with --names")
    parser.add_argument("--shards", type=int, help="default: half the layers; 26 with --names")
    parser.add_argument(
        "--order", choices=["natural", "adversarial"], help="adversarial: a layer's parts far apart"
    )
    parser.add_argument(
        "--unfused", action="store_true", help="a tensor for each expert and projection"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.tiny == options.true_geometry and not (options.names and options.headers_only):
        parser.error("choose --tiny or --true-geometry")
    if options.names and not options.tiny and not options.headers_only:
        parser.error("--names at true shapes would write 67 GiB; add --tiny or --headers-only")
    return options


if __name__ == "__main__":
    print(make(parse_options(sys.argv[1:])))
