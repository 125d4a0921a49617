"""A block is its operations, one after another, bit for bit; those are held to their twin in test_kernel_tables.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sparseflow.native import _ext

F32 = NDArray[np.float32]

HIDDEN, EPS, TOKENS = 88, 1e-6, (1, 5, 70)


class Blocks:
    """Random weights, and the same steps as single operations."""

    def __init__(self, runtime: _ext.Runtime) -> None:
        self.runtime = runtime
        self._random = np.random.default_rng(5)
        self.norm = self.floats(HIDDEN)

    def floats(self, *shape: int) -> F32:
        return self._random.standard_normal(shape).astype(np.float32)

    def matrix(self, rows: int, cols: int) -> _ext.Matrix:
        values = self.floats(rows, cols)
        return _ext.Matrix("int8-v1", rows, cols, *_ext.quantize_weights("int8-v1", values))

    def normed(self, x: F32) -> F32:
        out = np.empty_like(x)
        self.runtime.rms_norm(x, self.norm, EPS, out)
        return out

    def linear(self, matrices: list[_ext.Matrix], x: F32) -> list[F32]:
        outs = [np.empty((len(x), matrix.rows), np.float32) for matrix in matrices]
        self.runtime.linear(matrices, x, outs)
        return outs

    def added(self, x: F32, y: F32) -> F32:
        total = x.copy()
        self.runtime.add(total, y)
        return total


@pytest.fixture(params=_ext.isa_names())
def blocks(request: pytest.FixtureRequest) -> Blocks:
    return Blocks(_ext.Runtime(request.param, 2))


@pytest.mark.parametrize("num_tokens", TOKENS)
def test_attention_block_is_its_operations(blocks: Blocks, num_tokens: int) -> None:
    heads, kv_heads, dim, position = 4, 2, 16, 3
    inv_freq = np.abs(blocks.floats(4))
    norms = (blocks.floats(dim), blocks.floats(dim))
    layer = _ext.AttentionLayer(heads, kv_heads, dim, 0.25, inv_freq, *norms, EPS, True)
    rows = (2 * heads * dim, kv_heads * dim, kv_heads * dim)
    in_proj = [blocks.matrix(n, HIDDEN) for n in rows]
    out_proj = blocks.matrix(HIDDEN, heads * dim)
    x = blocks.floats(num_tokens, HIDDEN)
    cache = [blocks.floats(kv_heads, position + num_tokens, dim) for _ in range(2)]
    mine = [values.copy() for values in cache]

    query, key, value = blocks.linear(in_proj, blocks.normed(x))
    mixed = np.empty((num_tokens, heads * dim), np.float32)
    blocks.runtime.attention(layer, query, key, value, position, *cache, mixed)
    expected = blocks.added(x, blocks.linear([out_proj], mixed)[0])

    block = _ext.AttentionBlock(blocks.norm, EPS, in_proj, layer, out_proj)
    block.forward(blocks.runtime, x, position, *mine)
    _same(x, expected)
    for one, other in zip(mine, cache, strict=True):
        _same(one, other)


@pytest.mark.parametrize("num_tokens", TOKENS)
def test_delta_block_is_its_operations(blocks: Blocks, num_tokens: int) -> None:
    heads, key_dim, value_dim, kernel = 2, 8, 24, 4
    conv_dim = 2 * key_dim + heads * value_dim
    weights = (blocks.floats(conv_dim, kernel), -np.abs(blocks.floats(heads)), blocks.floats(heads))
    layer = _ext.DeltaLayer(
        1, heads, key_dim, value_dim, *weights, blocks.floats(value_dim), EPS, 0.5
    )
    in_proj = [blocks.matrix(n, HIDDEN) for n in (conv_dim, heads * value_dim, heads, heads)]
    out_proj = blocks.matrix(HIDDEN, heads * value_dim)
    x = blocks.floats(num_tokens, HIDDEN)
    state = (blocks.floats(conv_dim, kernel - 1), blocks.floats(heads, key_dim, value_dim))
    mine = [values.copy() for values in state]

    mixed = np.empty((num_tokens, heads * value_dim), np.float32)
    inputs = blocks.linear(in_proj, blocks.normed(x))
    blocks.runtime.gated_delta(layer, *inputs, *state, mixed)
    expected = blocks.added(x, blocks.linear([out_proj], mixed)[0])

    block = _ext.DeltaBlock(blocks.norm, EPS, in_proj, layer, out_proj)
    block.forward(blocks.runtime, x, *mine)
    _same(x, expected)
    for one, other in zip(mine, state, strict=True):
        _same(one, other)


@pytest.mark.parametrize("num_tokens", TOKENS)
def test_router_is_its_operations(blocks: Blocks, num_tokens: int) -> None:
    gate, x, k = blocks.matrix(12, HIDDEN), blocks.floats(num_tokens, HIDDEN), 3
    expected_ids = np.empty((num_tokens, k), np.int32)
    expected_weights = np.empty((num_tokens, k), np.float32)
    normed = blocks.normed(x)
    blocks.runtime.route(blocks.linear([gate], normed)[0], k, expected_ids, expected_weights)

    router = _ext.Router(blocks.norm, EPS, gate)
    out, ids, weights = (
        np.empty_like(x),
        np.empty_like(expected_ids),
        np.empty_like(expected_weights),
    )
    router.forward(blocks.runtime, x, out, ids, weights)
    _same(out, normed)
    _same(weights, expected_weights)
    np.testing.assert_array_equal(ids, expected_ids)


def _same(actual: NDArray[Any], expected: NDArray[Any]) -> None:
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))
