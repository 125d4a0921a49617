"""A dense Llama in GGUF and the mixture of experts made of it hold the same numbers, in the rows where they belong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sparseflow.config import EngineConfig
from sparseflow.engine.engine import Engine
from sparseflow.prepare.prepare import prepare

gguf = pytest.importorskip("gguf", reason="needs the gguf package: pip install gguf")

import make_smollm_moe as maker  # noqa: E402

HIDDEN, INNER, HEADS, KV_HEADS, VOCAB, EXPERTS = 64, 128, 4, 2, 40, 8
HEAD_DIM = HIDDEN // HEADS
Weights = dict[str, NDArray[np.float32]]


def random_weights() -> Weights:
    """Under GGUF's names; every value is a BF16."""
    random = np.random.default_rng(3)
    kv = KV_HEADS * HEAD_DIM
    shapes = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (kv, HIDDEN),
        "blk.0.attn_v.weight": (kv, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate.weight": (INNER, HIDDEN),
        "blk.0.ffn_up.weight": (INNER, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, INNER),
    }
    weights = {}
    for name, shape in shapes.items():
        values = random.normal(size=shape).astype(np.float32)
        weights[name] = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return weights


def write_gguf(path: Path, weights: Weights) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)
    words = ["<|endoftext|>", *(chr(ord("0") + i) for i in range(10))]
    words += [chr(ord("A") + i) for i in range(VOCAB - len(words) - 1)] + ["AB"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3] + [1] * (VOCAB - 1))
    writer.add_token_merges(["A B"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, values in weights.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def weights() -> Weights:
    return random_weights()


@pytest.fixture(scope="module")
def checkpoint(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("smollm")
    return maker.make(write_gguf(directory / "tiny.gguf", weights), directory / "moe")


def dense_logits(weights: Weights, ids: list[int]) -> NDArray[np.float64]:
    """Plain Llama in float64; GGUF's pairs of rotating channels lie side by side."""
    w = {name: values.astype(np.float64) for name, values in weights.items()}

    def norm(x: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * weight

    def rotate(x: NDArray[np.float64]) -> NDArray[np.float64]:
        frequency = 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angle = np.arange(len(ids))[:, None, None] * frequency
        a, b = x[..., 0::2], x[..., 1::2]
        turned = (a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle))
        return np.stack(turned, axis=-1).reshape(x.shape)

    x = w["token_embd.weight"][ids]
    h = norm(x, w["blk.0.attn_norm.weight"])
    q = rotate((h @ w["blk.0.attn_q.weight"].T).reshape(len(ids), HEADS, HEAD_DIM))
    k = rotate((h @ w["blk.0.attn_k.weight"].T).reshape(len(ids), KV_HEADS, HEAD_DIM))
    v = (h @ w["blk.0.attn_v.weight"].T).reshape(len(ids), KV_HEADS, HEAD_DIM)
    k, v = np.repeat(k, HEADS // KV_HEADS, axis=1), np.repeat(v, HEADS // KV_HEADS, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD_DIM)
    scores[:, ~np.tri(len(ids), dtype=bool)] = -np.inf
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    mixed = np.einsum("hqk,khd->qhd", p, v).reshape(len(ids), HIDDEN)
    x = x + mixed @ w["blk.0.attn_output.weight"].T
    h = norm(x, w["blk.0.ffn_norm.weight"])
    gate = h @ w["blk.0.ffn_gate.weight"].T
    inner = gate / (1 + np.exp(-gate)) * (h @ w["blk.0.ffn_up.weight"].T)
    x = x + inner @ w["blk.0.ffn_down.weight"].T
    result: NDArray[np.float64] = norm(x, w["output_norm.weight"]) @ w["token_embd.weight"].T
    return result


def test_the_mixture_computes_what_the_dense_model_does(
    checkpoint: Path, weights: Weights, tmp_path: Path
) -> None:
    ids = [1, 5, 39, 2, 17, 17, 0, 8]
    container = prepare(checkpoint, tmp_path / "bf16", "bf16")
    with Engine.open(container, EngineConfig(ctx=16, threads=1)) as engine:
        ours = engine.logits(ids)
    expected = dense_logits(weights, ids)
    assert np.abs(ours - expected).max() <= 2e-5 * np.abs(expected).max()


def test_configuration_and_tokenizer_come_from_the_file(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    assert (config["num_local_experts"], config["num_experts_per_tok"]) == (EXPERTS, EXPERTS)
    assert config["intermediate_size"] == INNER // EXPERTS
    assert config["rms_norm_eps"] == 1e-5
    tokenizer = maker.tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    assert tokenizer.encode("AB12<|endoftext|>").ids == [39, 2, 3, 0]
    assert (checkpoint / "chat_template.jinja").read_text() == "{{ messages[0]['content'] }}"
