"""GGUF files made byte by byte, so that a test can also make wrong ones; small models of both architectures in them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


@dataclass(frozen=True)
class Stored:
    """One tensor."""

    type: int
    """GGML's number of its type."""
    shape: tuple[int, ...]
    """Slowest dimension first."""
    data: bytes
    offset: int | None = None
    """Within the payload, if it is to be another than the next free one."""


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any) -> bytes:
    """Type and value of one metadata entry; bytes are taken as they are."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        kind = STRING if not value or isinstance(value[0], str) else typed(value[0])[0]
        body = b"".join(typed(item)[4:] for item in value)
        return struct.pack("<IIQ", ARRAY, kind, len(value)) + body
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", U32, value)
    if isinstance(value, float):
        return struct.pack("<If", F32, value)
    return struct.pack("<I", STRING) + string(value)


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Stored],
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_keys: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file; counts may be wrong ones."""
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(metadata) if num_keys is None else num_keys,
    )
    head = magic + struct.pack("<IQQ", version, *counts)
    for key, value in metadata.items():
        head += string(key) + typed(value)
    payload = b""
    for name, tensor in tensors.items():
        offset = len(payload) if tensor.offset is None else tensor.offset
        dims = struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape[::-1])
        head += string(name) + struct.pack("<I", len(tensor.shape)) + dims
        head += struct.pack("<IQ", tensor.type, offset)
        payload += tensor.data + bytes(-len(tensor.data) % alignment)
    return head + bytes(-len(head) % alignment) + payload


def float32(values: NDArray[np.float32]) -> Stored:
    return Stored(0, values.shape, np.ascontiguousarray(values, "<f4").tobytes())


def bfloat16(bits: NDArray[np.uint16]) -> Stored:
    return Stored(30, bits.shape, np.ascontiguousarray(bits, "<u2").tobytes())


WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ġ", "Ġa", "<think>"]
TOKENIZER: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": [*WORDS, "[PAD9]"],
    "tokenizer.ggml.token_type": [3, 3, 3, 1, 1, 1, 1, 1, 4, 5],
    "tokenizer.ggml.merges": ["a b", "Ġ a"],
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
}
LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.expert_count": 2,
    "llama.expert_used_count": 1,
}
_SHAPES = {
    "token_embd.weight": (12, 32),
    "output_norm.weight": (32,),
    "blk.0.attn_norm.weight": (32,),
    "blk.0.ffn_norm.weight": (32,),
    "blk.0.attn_q.weight": (32, 32),
    "blk.0.attn_k.weight": (16, 32),
    "blk.0.attn_v.weight": (16, 32),
    "blk.0.attn_output.weight": (32, 32),
    "blk.0.ffn_gate_inp.weight": (2, 32),
    "blk.0.ffn_gate_exps.weight": (2, 32, 32),
    "blk.0.ffn_up_exps.weight": (2, 32, 32),
    "blk.0.ffn_down_exps.weight": (2, 32, 32),
}


def llama_tensors() -> dict[str, Stored]:
    """The tensors of a model with two experts and a tied head: vectors and the router float32, matrices BF16."""
    random = np.random.default_rng(7)
    tensors = {}
    for name, shape in _SHAPES.items():
        values = random.normal(size=shape).astype(np.float32)
        is_float = len(shape) == 1 or "gate_inp" in name
        tensors[name] = (
            float32(values)
            if is_float
            else bfloat16((values.view(np.uint32) >> np.uint32(16)).astype(np.uint16))
        )
    return tensors
