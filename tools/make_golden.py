"""Makes a golden model: a tiny random checkpoint of a family and what Transformers computes with it in float32.

    python tools/make_golden.py qwen3_5_moe tests/golden/tiny
    python tools/make_golden.py mixtral tests/golden/tiny_mixtral

Sizes are odd on purpose: no dimension of a weight is a multiple of the blocks that the kernels work in. All weights can
be represented in bfloat16. Transformers computes every position twice: all at once, which takes its chunked delta rule,
and token by token, which takes its recurrent one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from transformers import (
    DynamicCache,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
)

SEED = 20261129
NUM_PROMPT = 67
NUM_DECODE = 40
TOKENIZER_SIZE = 290
VOCAB_SIZE = 300
MIN_ROUTER_GAP = 2e-4
"""Least distance of the last chosen router logit to the next one: closer ones could be chosen otherwise."""

CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
TOKENIZER_TEXT = (
    "once upon a time there was a king who had a daughter, and the daughter said to the king: "
    "the sea is wide and the night is long; the bird sang and the child went home. "
) * 4


Normal = NDArray[np.float32]
"""Standard normal values, to be scaled into a weight."""


@dataclass(frozen=True)
class Family:
    """What differs between the families' golden models."""

    model_class: Any
    config: Callable[[], Any]
    random_weight: Callable[[np.random.Generator, str, Normal], Normal]
    begins_with_bos: bool
    """Whether the tokenizer puts the first id before every text."""


@dataclass(frozen=True)
class Golden:
    """Logits after every id, [num_ids, vocab_size] float32, by both paths of the reference."""

    ids: NDArray[np.int32]
    chunked: NDArray[np.float32]
    recurrent: NDArray[np.float32]


def qwen3_5_moe_config() -> Any:
    """Three delta layers and one attention layer, grouped queries, partial rotary positions, twelve experts."""
    return Qwen3_5MoeTextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=84,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        num_experts=12,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=40,
        layer_types=["linear_attention"] * 3 + ["full_attention"],
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [2, 1, 1],
        },
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
        dtype="float32",
    )


def mixtral_config() -> Any:
    """Two layers, grouped queries, eleven experts."""
    return MixtralConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=84,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=48,
        max_position_embeddings=512,
        num_local_experts=11,
        num_experts_per_tok=3,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        sliding_window=None,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
        dtype="float32",
    )


def make_model(family: Family, seed: int = SEED) -> Any:
    """The model in float32, its weights rounded to bfloat16."""
    model = family.model_class(family.config()).eval()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            normal = rng.standard_normal(tuple(parameter.shape)).astype(np.float32)
            values = family.random_weight(rng, name, normal)
            parameter.copy_(torch.from_numpy(values).bfloat16().float())
    return model


def make_ids(seed: int = SEED) -> NDArray[np.int32]:
    rng = np.random.default_rng(seed + 1)
    return rng.integers(0, TOKENIZER_SIZE, NUM_PROMPT + NUM_DECODE, dtype=np.int32)


def compute(model: Any, ids: NDArray[np.int32]) -> Golden:
    """Both paths over all ids. Raises ValueError if a router was close to choosing otherwise."""
    gaps: list[float] = []

    def gap(logits: torch.Tensor) -> float:
        return _router_gap(logits, model.config.num_experts_per_tok)

    hooks = [
        layer.mlp.gate.register_forward_hook(lambda _m, _i, out: gaps.append(gap(out[0])))
        for layer in model.model.layers
    ]
    chunked = prefill_then_decode(model, ids, len(ids))
    recurrent = prefill_then_decode(model, ids, 0)
    for hook in hooks:
        hook.remove()
    if min(gaps) < MIN_ROUTER_GAP:
        raise ValueError(f"router logits are only {min(gaps):.1e} apart; take another seed")
    return Golden(ids, chunked, recurrent)


def prefill_then_decode(model: Any, ids: NDArray[np.int32], num_prompt: int) -> NDArray[np.float32]:
    """Logits after every id: the first num_prompt ids in one call, then one id a call."""
    cache = DynamicCache(config=model.config)
    pieces = [ids[:num_prompt]] if num_prompt else []
    pieces += [ids[i : i + 1] for i in range(num_prompt, len(ids))]
    rows = []
    with torch.no_grad():
        for piece in pieces:
            tensor = torch.from_numpy(piece.astype(np.int64))[None]
            rows.append(model(tensor, cache=cache, use_cache=True).logits[0].numpy())
    return np.concatenate(rows)


def write_checkpoint(family: Family, model: Any, directory: Path) -> None:
    """A checkpoint as publishers write it: BF16 safetensors, config, tokenizer, generation config, chat template."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: values.bfloat16() for name, values in sorted(_published(model).items())}
    safetensors.torch.save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = model.config.to_dict()
    for name in ("transformers_version", "_name_or_path"):
        config.pop(name, None)
    config |= {"architectures": [family.model_class.__name__], "dtype": "bfloat16"}
    _write_json(config, directory / "config.json")
    generation = {"bos_token_id": 0, "eos_token_id": [0, 2], "do_sample": False}
    _write_json(generation, directory / "generation_config.json")
    _write_json(
        {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "tokenizer_class": "Tokenizer"},
        directory / "tokenizer_config.json",
    )
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    make_tokenizer(family).save(str(directory / "tokenizer.json"))


def _published(model: Any) -> dict[str, torch.Tensor]:
    """The model's tensors under the names that checkpoints have."""
    tensors: dict[str, torch.Tensor] = model.state_dict()
    if model.config.model_type != "mixtral":
        return tensors
    published: dict[str, torch.Tensor] = {}
    for name, values in tensors.items():
        prefix, is_mlp, rest = name.partition(".mlp.")
        prefix += ".block_sparse_moe."
        for expert in range(model.config.num_local_experts):
            own = f"{prefix}experts.{expert}."
            if rest == "experts.gate_up_proj":
                gate, up = values[expert].chunk(2)
                published |= {own + "w1.weight": gate.clone(), own + "w3.weight": up.clone()}
            elif rest == "experts.down_proj":
                published[own + "w2.weight"] = values[expert].clone()
        if not rest.startswith("experts."):
            published[prefix + rest if is_mlp else name] = values
    return published


def make_tokenizer(family: Family) -> tokenizers.Tokenizer:
    """Byte-level BPE of TOKENIZER_SIZE ids: 3 special tokens, 256 bytes, the rest merges."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=TOKENIZER_SIZE,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TOKENIZER_TEXT], trainer)
    if family.begins_with_bos:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
    return tokenizer


def write_logits(golden: Golden, directory: Path, seed: int = SEED) -> None:
    np.savez_compressed(
        directory / "logits.npz",
        ids=golden.ids,
        chunked=golden.chunked,
        recurrent=golden.recurrent,
    )
    provenance = {
        "made_by": "tools/make_golden.py",
        "seed": seed,
        "numpy": np.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "largest_relative_difference_of_the_two_paths": largest_difference(
            golden.chunked, golden.recurrent
        ),
    }
    _write_json(provenance, directory / "provenance.json")


def largest_difference(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Over positions, the largest of max|a - b| / max|b|."""
    return float((np.abs(a - b).max(axis=1) / np.abs(b).max(axis=1)).max())


def _random_qwen3_5_moe(rng: np.random.Generator, name: str, normal: Normal) -> Normal:
    """Sizes that keep activations near one and let every gate, norm and decay do something."""
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.05, 4.0, normal.shape)).astype(np.float32)
    if name.endswith(("dt_bias", "embed_tokens.weight")):
        return normal
    if name.endswith("linear_attn.norm.weight"):
        return 1 + 0.3 * normal
    if name.endswith("norm.weight"):
        return 0.3 * normal
    if name.endswith("conv1d.weight"):
        return 0.5 * normal
    return np.float32(1.5 * normal.shape[-1] ** -0.5) * normal


def _random_mixtral(_: np.random.Generator, name: str, normal: Normal) -> Normal:
    if name.endswith("embed_tokens.weight"):
        return normal
    if name.endswith("norm.weight"):
        return 1 + 0.3 * normal
    return np.float32(1.5 * normal.shape[-1] ** -0.5) * normal


FAMILIES = {
    "mixtral": Family(MixtralForCausalLM, mixtral_config, _random_mixtral, True),
    "qwen3_5_moe": Family(Qwen3_5MoeForCausalLM, qwen3_5_moe_config, _random_qwen3_5_moe, False),
}


def _router_gap(logits: torch.Tensor, k: int) -> float:
    ordered = logits.sort(dim=-1, descending=True).values
    return float((ordered[:, k - 1] - ordered[:, k]).min())


def _write_json(value: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    family = FAMILIES[options.family]
    model = make_model(family)
    golden = compute(model, make_ids())
    write_checkpoint(family, model, options.output)
    write_logits(golden, options.output)


if __name__ == "__main__":
    main()
