"""Tensors computed from a GGUF file: any part of them, at once or in pieces, is that part of the whole."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

gguf = pytest.importorskip("gguf", reason="needs the gguf package: pip install gguf")

from gguf_bytes import LLAMA, Stored, gguf_bytes, llama_tensors  # noqa: E402

from peers import gguf_layout  # noqa: E402
from sparseflow.checkpoint.checkpoint import CheckpointTensor  # noqa: E402
from sparseflow.checkpoint.gguf import values  # noqa: E402
from sparseflow.checkpoint.gguf.block_types import QUANTIZED_TYPES, BlockType  # noqa: E402
from sparseflow.checkpoint.gguf.checkpoint import GgufCheckpoint  # noqa: E402
from sparseflow.checkpoint.gguf.orders import (  # noqa: E402
    pair_order,
    tail_order,
    value_head_order,
)
from sparseflow.errors import CheckpointError, ConfigError  # noqa: E402

HIDDEN, INNER, EXPERTS = 256, 512, 2


def random_blocks(kind: BlockType, shape: tuple[int, ...], seed: int) -> Stored:
    """Random codes with scales that are finite float16 numbers, wherever in a block they lie."""
    random = np.random.default_rng(seed)
    count = int(np.prod(shape)) // kind.block_values
    blocks = random.integers(0, 256, (count, kind.block_bytes), np.uint8)
    blocks[:, 1::2] &= 0xBF  # no exponent of all ones, wherever a float16 begins
    blocks[:, ::2] &= 0xBF
    return Stored(kind.number, shape, blocks.tobytes())


def write_model(path: Path, kind: BlockType) -> dict[str, Stored]:
    """A llama model whose matrices are of one type."""
    shapes = {"ffn_gate_exps": (EXPERTS, INNER, HIDDEN), "ffn_up_exps": (EXPERTS, INNER, HIDDEN)}
    shapes["ffn_down_exps"] = (EXPERTS, HIDDEN, INNER)
    tensors = llama_tensors()
    for name, tensor in tensors.items():
        part = name.removeprefix("blk.0.").removesuffix(".weight")
        rows = HIDDEN // 2 if part in ("attn_k", "attn_v") else HIDDEN
        shape = shapes.get(part, (rows, HIDDEN))
        if len(tensor.shape) == 1:
            tensors[name] = Stored(0, (HIDDEN,), np.ones(HIDDEN, "<f4").tobytes())
        elif part == "ffn_gate_inp":
            tensors[name] = Stored(0, (EXPERTS, HIDDEN), bytes(4 * EXPERTS * HIDDEN))
        else:
            tensors[name] = random_blocks(kind, shape, len(name))
    metadata = {**LLAMA, "llama.embedding_length": HIDDEN, "llama.feed_forward_length": INNER}
    path.write_bytes(gguf_bytes(metadata, tensors))
    return tensors


def whole(tensor: Stored, kind: BlockType) -> NDArray[np.float32]:
    """As the gguf package dequantizes it."""
    row_bytes = tensor.shape[-1] // kind.block_values * kind.block_bytes
    raw = np.frombuffer(tensor.data, np.uint8).reshape(-1, row_bytes)
    with np.errstate(all="ignore"):
        decoded = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(kind.number))
    return np.asarray(decoded, np.float32).reshape(tensor.shape)


def read(
    checkpoint: GgufCheckpoint, tensor: CheckpointTensor, begin: int = 0, end: int | None = None
) -> NDArray[np.uint8]:
    out = np.empty((tensor.nbytes if end is None else end) - begin, np.uint8)
    checkpoint.read_into(tensor.file, tensor.offset + begin, out.data)
    return out


@pytest.mark.parametrize("kind", QUANTIZED_TYPES, ids=lambda kind: kind.name)
def test_values_are_those_that_the_gguf_package_makes_of_the_whole(
    kind: BlockType, tmp_path: Path
) -> None:
    tensors = write_model(tmp_path / "a.gguf", kind)
    with GgufCheckpoint.open(tmp_path / "a.gguf") as checkpoint:
        assert checkpoint.quantized_types == [kind.name]
        for part in ("attn_output", "attn_v", "ffn_down_exps"):
            name = f"blk.0.{part}.weight"
            found = read(checkpoint, checkpoint.tensors[name]).view(np.float32)
            assert np.isfinite(found).all()
            np.testing.assert_array_equal(found, whole(tensors[name], kind).reshape(-1))
        gate, up = (
            whole(tensors[f"blk.0.ffn_{part}_exps.weight"], kind) for part in ("gate", "up")
        )
        fused = checkpoint.tensors["blk.0.ffn_gate_exps.weight"]
        expected = np.concatenate([gate, up], axis=1)
        assert fused.shape == expected.shape
        np.testing.assert_array_equal(
            read(checkpoint, fused).view(np.float32), expected.reshape(-1)
        )


def test_without_the_gguf_package_only_quantized_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    write_model(tmp_path / "a.gguf", QUANTIZED_TYPES[0])
    with pytest.raises(ConfigError, match=r"pip install 'sparseflow\[gguf\]'"):
        GgufCheckpoint.open(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(gguf_bytes(LLAMA, llama_tensors()))
    with GgufCheckpoint.open(tmp_path / "b.gguf") as checkpoint:
        tensor = checkpoint.tensors["blk.0.attn_q.weight"]
        assert read(checkpoint, tensor).size == tensor.nbytes


def test_any_part_read_by_any_thread_is_a_part_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "BLOCK_VALUES", 24 * HIDDEN)
    (kind,) = (kind for kind in QUANTIZED_TYPES if kind.name == "Q4_K")
    write_model(tmp_path / "a.gguf", kind)
    random = np.random.default_rng(1)
    with GgufCheckpoint.open(tmp_path / "a.gguf") as checkpoint:
        names = ("blk.0.ffn_gate_exps.weight", "blk.0.attn_q.weight", "token_embd.weight")
        for tensor in (checkpoint.tensors[name] for name in names):
            everything = read(checkpoint, tensor)
            cuts = [sorted(random.integers(0, tensor.nbytes, 2)) for _ in range(12)]
            with ThreadPoolExecutor(4) as pool:
                parts = pool.map(lambda cut, t=tensor: read(checkpoint, t, *cut), cuts)
                for (begin, end), part in zip(cuts, parts, strict=True):
                    np.testing.assert_array_equal(part, everything[begin:end])


def test_embedding_is_rounded_to_the_nearest_bf16(tmp_path: Path) -> None:
    (kind,) = (kind for kind in QUANTIZED_TYPES if kind.name == "Q6_K")
    tensors = write_model(tmp_path / "a.gguf", kind)
    with GgufCheckpoint.open(tmp_path / "a.gguf") as checkpoint:
        tensor = checkpoint.tensors["token_embd.weight"]
        assert tensor.dtype == "BF16"
        found = read(checkpoint, tensor).view(np.uint16).astype(np.uint32) << np.uint32(16)
    expected = whole(tensors["token_embd.weight"], kind).reshape(-1)
    error = np.abs(found.view(np.float32).astype(np.float64) - expected)
    assert (error <= np.abs(expected) * 2.0**-8).all()


def test_rounding_is_to_even_and_refuses_what_is_not_finite() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x80000000], np.uint32)
    rounded = values.round_to_bf16(bits.view(np.float32), "x")
    np.testing.assert_array_equal(rounded, [0x3F80, 0x3F82, 0x3F81, 0x8000])
    with pytest.raises(CheckpointError, match="x has a value that is not finite"):
        values.round_to_bf16(np.array([np.nan], np.float32), "x")


@pytest.mark.parametrize(("keys", "heads", "width"), [(2, 6, 1), (4, 8, 3), (1, 4, 2)])
def test_value_heads_go_back_to_where_the_writer_took_them_from(
    keys: int, heads: int, width: int
) -> None:
    config = {"linear_num_key_heads": keys, "linear_num_value_heads": heads}
    rows = np.arange(5 + heads * width)
    tail = rows[5:].reshape(heads, width)[gguf_layout.value_head_order(config)].reshape(-1)
    stored = np.concatenate([rows[:5], tail])
    order = tail_order(rows.size, value_head_order(keys, heads), width)
    np.testing.assert_array_equal(stored[order], rows)


def test_rotary_pairs_go_back_half_a_head_apart() -> None:
    rows = np.arange(24).reshape(3, 2, 4)  # heads, halves, pairs
    stored = rows.swapaxes(1, 2).reshape(-1)
    np.testing.assert_array_equal(stored[pair_order(24, 3)], np.arange(24))
