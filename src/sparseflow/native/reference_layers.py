"""The NumPy twins of attention, the gated delta rule, routing and sampling. Only tests use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparseflow.native.reference import (
    F32,
    I32,
    KEY_BLOCK,
    KEY_SEGMENT,
    dot,
    exp,
    fma,
    l2_norm,
    rms_norm,
    rotary_angles,
    rotate,
    sigmoid,
    silu,
    softplus,
    tree,
)

NEVER = np.float32(-np.inf)


@dataclass(frozen=True)
class Attention:
    """The constants of _ext.AttentionLayer, under the same names."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    inv_freq: F32
    q_norm: F32 | None
    k_norm: F32 | None
    eps: float
    gated: bool


def attention(
    layer: Attention,
    query: F32,
    key: F32,
    value: F32,
    position: int,
    keys: NDArray[Any],
    values: NDArray[Any],
) -> F32:
    """Norms, rotary, append to keys and values [kv, capacity, d] in place, causal attention, gate; [T, heads * d]."""
    tokens, d = query.shape[0], layer.head_dim
    queries = query.reshape(tokens, layer.num_heads, -1, d)
    new_keys = key.reshape(tokens, layer.num_kv_heads, d)
    new_values = value.reshape(tokens, layer.num_kv_heads, d)
    out = np.zeros((tokens, layer.num_heads, d), np.float32)
    for t in range(tokens):
        angles = rotary_angles(position + t, layer.inv_freq)
        keys[:, position + t] = _prepared(new_keys[t], layer.k_norm, layer.eps, angles)
        values[:, position + t] = new_values[t]
        q = _prepared(queries[t, :, 0], layer.q_norm, layer.eps, angles)
        out[t] = _attend(layer, q, keys, values, position + t + 1)
        if layer.gated:
            out[t] = out[t] * sigmoid(queries[t, :, 1])
    return out.reshape(tokens, -1)


def _prepared(x: F32, weight: F32 | None, eps: float, angles: tuple[F32, F32]) -> F32:
    normed = x if weight is None else rms_norm(x, weight, eps)
    return rotate(normed, *angles)


def _attend(
    layer: Attention, q: F32, keys: NDArray[Any], values: NDArray[Any], num_keys: int
) -> F32:
    """All heads of one token against keys 0..num_keys-1: segments of 1,024 keys, merged in increasing order."""
    group = layer.num_heads // layer.num_kv_heads
    total: tuple[F32, F32, F32] | None = None
    for begin in range(0, num_keys, KEY_SEGMENT):
        end = min(begin + KEY_SEGMENT, num_keys)
        k = np.repeat(keys[:, begin:end].astype(np.float32), group, axis=0)
        v = np.repeat(values[:, begin:end].astype(np.float32), group, axis=0)
        part = _segment(q, k, v, np.float32(layer.scale))
        total = part if total is None else _merged(total, part)
    assert total is not None
    return total[2] / total[1][:, None]


def _segment(q: F32, k: F32, v: F32, scale: np.float32) -> tuple[F32, F32, F32]:
    """Running maximum [H], sum [H] and output [H, d] of heads q [H, d] over keys k [H, n, d] in blocks of 64."""
    heads, num_keys, d = k.shape
    maximum = np.full(heads, NEVER)
    total = np.zeros(heads, np.float32)
    out = np.zeros((heads, d), np.float32)
    for begin in range(0, num_keys, KEY_BLOCK):
        block = slice(begin, min(begin + KEY_BLOCK, num_keys))
        scores = np.full((heads, KEY_BLOCK), NEVER)
        scores[:, : block.stop - begin] = dot(k[:, block], q[:, None]) * scale
        new_maximum = np.maximum(maximum, scores.max(axis=1))
        rescale = exp(maximum - new_maximum)
        p = exp(scores - new_maximum[:, None])
        lanes = np.zeros((heads, 16), np.float32)
        for i in range(0, KEY_BLOCK, 16):
            lanes = lanes + p[:, i : i + 16]
        total = total * rescale + tree(lanes)
        out = out * rescale[:, None]
        for j in range(block.start, block.stop):
            out = fma(p[:, j - begin, None], v[:, j], out)
        maximum = new_maximum
    return maximum, total, out


def _merged(a: tuple[F32, F32, F32], b: tuple[F32, F32, F32]) -> tuple[F32, F32, F32]:
    maximum = np.maximum(a[0], b[0])
    rescale, weight = exp(a[0] - maximum), exp(b[0] - maximum)
    total = a[1] * rescale + b[1] * weight
    return maximum, total, fma(b[2], weight[:, None], a[2] * rescale[:, None])


@dataclass(frozen=True)
class Delta:
    """The constants of _ext.DeltaLayer, under the same names."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_weight: F32
    neg_exp_a: F32
    dt_bias: F32
    norm_weight: F32
    eps: float
    scale: float


def gated_delta(layer: Delta, qkv: F32, z: F32, b: F32, a: F32, conv_tail: F32, state: F32) -> F32:
    """[T, hv * dv]; conv_tail [channels, kernel - 1] and state [hv, dk, dv] change in place."""
    tokens, heads = qkv.shape[0], layer.num_value_heads
    ratio = heads // layer.num_key_heads
    key_channels = layer.num_key_heads * layer.key_dim
    out = np.zeros((tokens, heads, layer.value_dim), np.float32)
    for t in range(tokens):
        mixed = _conv_silu(layer.conv_weight, conv_tail, qkv[t])
        q, k = mixed[: 2 * key_channels].reshape(2, layer.num_key_heads, layer.key_dim)
        q = np.repeat(l2_norm(q) * np.float32(layer.scale), ratio, axis=0)
        k = np.repeat(l2_norm(k), ratio, axis=0)
        v = mixed[2 * key_channels :].reshape(heads, layer.value_dim)
        decay = exp(layer.neg_exp_a * softplus(a[t] + layer.dt_bias))
        o = _delta_step(state, q, k, v, decay, sigmoid(b[t]))
        gate = silu(z[t].reshape(heads, layer.value_dim))
        out[t] = rms_norm(o, layer.norm_weight, layer.eps) * gate
    return out.reshape(tokens, -1)


def _conv_silu(weight: F32, tail: F32, x: F32) -> F32:
    window = np.concatenate([tail, x[:, None]], axis=1)
    acc = np.zeros_like(x)
    for tap in range(weight.shape[1]):
        acc = fma(weight[:, tap], window[:, tap], acc)
    tail[:] = window[:, 1:]
    return silu(acc)


def _delta_step(state: F32, q: F32, k: F32, v: F32, decay: F32, beta: F32) -> F32:
    memory = np.zeros_like(v)
    for i in range(q.shape[1]):
        state[:, i] = state[:, i] * decay[:, None]
        memory = fma(state[:, i], k[:, i, None], memory)
    delta = (v - memory) * beta[:, None]
    out = np.zeros_like(v)
    for i in range(q.shape[1]):
        state[:, i] = fma(k[:, i, None], delta, state[:, i])
        out = fma(state[:, i], q[:, i, None], out)
    return out


def route(logits: F32, k: int) -> tuple[I32, F32]:
    """Ids of the k largest of each row, ties to the lower id, ascending; softmax weights over the chosen."""
    order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    ids = np.sort(order, axis=1).astype(np.int32)
    chosen = np.take_along_axis(logits, ids, axis=1)
    weights = exp(chosen - chosen.max(axis=1, keepdims=True))
    total = np.zeros(len(logits), np.float32)
    for i in range(k):
        total = total + weights[:, i]
    return ids, weights / total[:, None]


@dataclass(frozen=True)
class Sampling:
    """The fields of _ext.SampleParams."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    seed: int = 0


def sample(
    logits: F32, history: list[int], params: Sampling, position: int, num_prompt: int = 0
) -> int:
    """Penalties, temperature, top-k, top-p, min-p, then one draw; double sums in decreasing order of logits."""
    values = logits.copy()
    for token in set(history):
        penalty = np.float32(params.repetition_penalty)
        values[token] = values[token] * penalty if values[token] < 0 else values[token] / penalty
    for token in set(history[num_prompt:]):
        values[token] -= np.float32(params.presence_penalty)
    if params.temperature == 0:
        return int(values.argmax())
    values = values / np.float32(params.temperature)
    order = np.argsort(-values, kind="stable")[: params.top_k or None]
    weights = exp(values[order] - values[order[0]]).astype(np.float64)
    kept = len(weights)
    if params.top_p < 1:
        sums = np.cumsum(weights)
        kept = int(np.argmax(sums >= float(np.float32(params.top_p)) * sums[-1])) + 1
    while kept > 1 and weights[kept - 1] < np.float32(params.min_p):
        kept -= 1
    sums = np.cumsum(weights[:kept])
    target = philox_uniform(params.seed, position) * sums[-1]
    return int(order[min(int(np.searchsorted(sums, target, side="right")), kept - 1)])


def philox_uniform(seed: int, position: int) -> float:
    """Philox4x32-10, counter (position, 0), key seed; the first two words make 53 bits of [0, 1)."""
    mask = 0xFFFFFFFF
    counter = [position & mask, position >> 32 & mask, 0, 0]
    key = [seed & mask, seed >> 32 & mask]
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [b >> 32 ^ counter[1] ^ key[0], b & mask, a >> 32 ^ counter[3] ^ key[1], a & mask]
        key = [key[0] + 0x9E3779B9 & mask, key[1] + 0xBB67AE85 & mask]
    return ((counter[0] << 32 | counter[1]) >> 11) * 2.0**-53
