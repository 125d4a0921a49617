"""Every kernel table that this CPU can run gives the bits of native/reference.py, whatever the number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sparseflow.native import _ext, reference, reference_layers

F32 = NDArray[np.float32]

RUNTIMES = {
    (isa, threads): _ext.Runtime(isa, threads) for isa in _ext.isa_names() for threads in (1, 3)
}

TINY = [2.0**-126, -(2.0**-126), 2.0**-149, -(2.0**-149), 2.0**-140, 2.0**-101]
EDGES = [20, 20.000002, 88.72, 88.7229, 88.73, 89.1, -87.3, -87.30001, -87.2, -104]
SPECIAL = np.array(
    [0, -0.0, 1, -1, 0.5, 3.4e38, -3.4e38, 1e30, -1e30, *TINY, *EDGES], dtype=np.float32
)


@pytest.fixture(params=sorted(RUNTIMES), ids=lambda key: f"{key[0]}-{key[1]}")
def runtime(request: pytest.FixtureRequest) -> _ext.Runtime:
    return RUNTIMES[request.param]


def every_runtime(check: Callable[[_ext.Runtime], None]) -> None:
    for each in RUNTIMES.values():
        check(each)


def same_bits(actual: F32, expected: F32) -> None:
    assert actual.shape == expected.shape
    wrong = actual.view(np.uint32) != expected.view(np.uint32)
    wrong &= ~(np.isnan(actual) & np.isnan(expected))  # payloads are not part of the contract
    assert not wrong.any(), (np.argwhere(wrong)[:5], actual[wrong][:5], expected[wrong][:5])


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.standard_normal(shape, dtype=np.float32)


def wild(rng: np.random.Generator, *shape: int) -> F32:
    """Finite values of every magnitude, zeros of both signs and subnormals among them."""
    x = normal(rng, *shape) * np.exp2(rng.integers(-40, 20, shape)).astype(np.float32)
    x[rng.random(shape) < 0.1] = 0
    x[rng.random(shape) < 0.05] = -0.0
    x[rng.random(shape) < 0.05] = 2**-149
    return x


def float_matrix(weights: F32) -> _ext.Matrix:
    return _ext.Matrix("float32", *weights.shape, weights.view(np.uint8).reshape(-1))


def bf16_bits(weights: F32) -> NDArray[np.uint16]:
    return (weights.view(np.uint32) >> 16).astype(np.uint16)


def bf16_matrix(bits: NDArray[np.uint16]) -> _ext.Matrix:
    return _ext.Matrix("bf16-v1", *bits.shape, bits.view(np.uint8).reshape(-1))


def linear(runtime: _ext.Runtime, matrix: _ext.Matrix, x: F32) -> F32:
    out = np.full((len(x), matrix.rows), np.nan, np.float32)
    runtime.linear([matrix], x, [out])
    return out


# --- elementwise


def test_exp_is_the_reference_bit_for_bit(runtime: _ext.Runtime) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([SPECIAL, rng.uniform(-110, 95, 5001).astype(np.float32), wild(rng, 500)])
    x = np.concatenate([x, np.array([np.inf, -np.inf, np.nan], np.float32)])
    out = np.empty_like(x)
    runtime.exp(x, out)
    same_bits(out, reference.exp(x))
    assert out[-3] == np.inf
    assert out[-2].tobytes() == np.float32(0).tobytes()


def test_silu_multiply_is_the_reference_bit_for_bit(runtime: _ext.Runtime) -> None:
    rng = np.random.default_rng(2)
    gate = np.concatenate([SPECIAL, rng.uniform(-120, 120, 999).astype(np.float32)])
    up = wild(rng, len(gate))
    out = np.empty_like(gate)
    runtime.silu_multiply(gate, up, out)
    same_bits(out, reference.silu_multiply(gate, up))
    assert np.isfinite(out[gate == np.float32(-3.4e38)]).all()


def test_add_and_bf16_to_float_are_the_reference_bit_for_bit(runtime: _ext.Runtime) -> None:
    rng = np.random.default_rng(3)
    x, y = wild(rng, 7, 1301), wild(rng, 7, 1301)
    expected = x + y
    runtime.add(x, y)
    same_bits(x, expected)
    bits = rng.integers(0, 0x7F80, (5, 77)).astype(np.uint16) | np.uint16(0x8000)
    out = np.empty(bits.shape, np.float32)
    runtime.bf16_to_float(bits, out)
    same_bits(out, reference.widen_bf16(bits))


# --- norms


@pytest.mark.parametrize("n", [1, 15, 16, 17, 64, 100, 256, 301])
def test_rms_norm_is_the_reference_bit_for_bit(runtime: _ext.Runtime, n: int) -> None:
    rng = np.random.default_rng(n)
    x = wild(rng, 5, n)
    x[3] = 0
    x[4] = 2**-149
    weight = normal(rng, n)
    out = np.empty_like(x)
    runtime.rms_norm(x, weight, 1e-6, out)
    same_bits(out, reference.rms_norm(x, weight, 1e-6))
    runtime.rms_norm(x, weight, 1e-6, x)
    same_bits(x, out)


# --- matrices


@pytest.mark.parametrize("cols", [1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 128, 130, 199, 200])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_linear_is_the_reference_bit_for_bit(runtime: _ext.Runtime, cols: int, tokens: int) -> None:
    rng = np.random.default_rng(1000 * cols + tokens)
    rows = int(rng.integers(1, 70))
    weights, x = normal(rng, rows, cols), wild(rng, tokens, cols)
    same_bits(linear(runtime, float_matrix(weights), x), reference.float_linear(weights, x))
    bits = bf16_bits(weights)
    expected = reference.float_linear(reference.widen_bf16(bits), x)
    same_bits(linear(runtime, bf16_matrix(bits), x), expected)
    codes, scales = reference.quantize_int8(weights)
    matrix = _ext.Matrix("int8-v1", rows, cols, reference.interleave(codes), scales)
    same_bits(linear(runtime, matrix, x), reference.int8_linear(codes, scales, x)[:, :rows])


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 50), cols=st.integers(1, 200), tokens=st.integers(1, 9), seed=st.integers(0)
)
def test_int8_linear_of_hostile_codes_and_scales_is_exact(
    rows: int, cols: int, tokens: int, seed: int
) -> None:
    """Codes of -128 in every padded cell, scales negative, subnormal and huge: nothing saturates."""
    rng = np.random.default_rng(seed)
    shape = (-(-rows // 16) * 16, -(-cols // 64) * 64)
    codes = rng.choice(np.array([0, 0, 1, 127, 128, 129, 254, 255], np.uint8), shape)
    scales = wild(rng, shape[0])
    x = wild(rng, tokens, cols)
    x[0] = 1.0
    matrix = _ext.Matrix("int8-v1", rows, cols, reference.interleave(codes), scales)
    expected = reference.int8_linear(codes, scales, x)[:, :rows]
    every_runtime(lambda each: same_bits(linear(each, matrix, x), expected))


@pytest.mark.parametrize("sign", [1, -1])
def test_int8_sums_of_extreme_codes_do_not_saturate(runtime: _ext.Runtime, sign: int) -> None:
    x = np.full((5, 256), sign, np.float32)
    for code in (0, 255):
        codes = np.full((16, 256), code, np.uint8)
        scales = np.ones(16, np.float32)
        matrix = _ext.Matrix("int8-v1", 16, 256, reference.interleave(codes), scales)
        out = linear(runtime, matrix, x)
        same_bits(out, reference.int8_linear(codes, scales, x))
        assert np.allclose(out, sign * 256 * (code - 128), rtol=1e-6)


GROUP_FORMATS = {
    "int8-g64-v1": (256, 128, 64, reference.interleave),
    "int6-g64-v1": (64, 32, 64, reference.interleave_int6),
    "int4-g64-v1": (16, 8, 64, reference.interleave_int4),
    "int4-g32-v1": (16, 8, 32, reference.interleave_int4),
}


@pytest.mark.parametrize("weight_format", GROUP_FORMATS)
@pytest.mark.parametrize(("rows", "cols", "tokens"), [(16, 64, 1), (40, 200, 3), (33, 576, 21)])
def test_grouped_linear_of_any_codes_and_scales_equals_the_reference(
    runtime: _ext.Runtime, weight_format: str, rows: int, cols: int, tokens: int
) -> None:
    num_codes, offset, inputs, interleave = GROUP_FORMATS[weight_format]
    rng = np.random.default_rng(rows + cols)
    padded = (-(-rows // 16) * 16, -(-cols // 64) * 64)
    codes = rng.integers(0, num_codes, padded).astype(np.uint8)
    codes[:, cols:] = offset
    codes[0] = num_codes - 1
    codes[1] = 0
    scales = rng.normal(0, 0.01, (padded[0], padded[1] // inputs)).astype(np.float16)
    scales[2:4] = [[np.float16(-6e4)], [np.float16(6e-8)]]
    x = normal(rng, tokens, cols)
    x[0] = np.abs(x[0]).max()  # every code is 127: the largest sums
    matrix = _ext.Matrix(
        weight_format, rows, cols, interleave(codes), reference.interleave_scales(scales)
    )
    expected = reference.group_linear(codes, offset, scales, x)[:, :rows]
    same_bits(linear(runtime, matrix, x), expected)


def test_activations_below_two_to_the_minus_100_are_zero(runtime: _ext.Runtime) -> None:
    rng = np.random.default_rng(5)
    codes, scales = reference.quantize_int8(normal(rng, 20, 70))
    matrix = _ext.Matrix("int8-v1", 20, 70, reference.interleave(codes), scales)
    x = np.full((3, 70), 2.0**-101, np.float32)
    x[1] = 2.0**-100
    x[2] = -(2.0**-149)
    out = linear(runtime, matrix, x)
    same_bits(out, reference.int8_linear(codes, scales, x)[:, :20])
    assert not out[0].any()
    assert out[1].any()
    assert not out[2].any()


def test_an_activation_that_is_not_finite_reaches_the_output(runtime: _ext.Runtime) -> None:
    codes, scales = reference.quantize_int8(np.ones((16, 128), np.float32))
    matrix = _ext.Matrix("int8-v1", 16, 128, reference.interleave(codes), scales)
    for bad in (np.nan, np.inf, -np.inf):
        x = np.ones((1, 128), np.float32)
        x[0, 70] = bad
        out = linear(runtime, matrix, x)
        assert not np.isfinite(out).any()
        same_bits(out, reference.int8_linear(codes, scales, x))


def test_linear_shares_one_input_among_matrices_of_all_formats(runtime: _ext.Runtime) -> None:
    rng = np.random.default_rng(6)
    x = normal(rng, 3, 96)
    weights = [normal(rng, rows, 96) for rows in (1, 40, 33)]
    codes, scales = _ext.quantize_weights("int8-v1", weights[1])
    matrices = [
        float_matrix(weights[0]),
        _ext.Matrix("int8-v1", 40, 96, codes, scales),
        bf16_matrix(bf16_bits(weights[2])),
    ]
    outs = [np.empty((3, m.rows), np.float32) for m in matrices]
    runtime.linear(matrices, x, outs)
    for matrix, out in zip(matrices, outs, strict=True):
        same_bits(out, linear(runtime, matrix, x))


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 40), cols=st.integers(1, 200), seed=st.integers(0))
def test_quantized_weights_are_the_reference_byte_for_byte(rows: int, cols: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = wild(rng, rows, cols)
    weights[0] = 0
    weights[-1] = 2**-149
    codes, scales = reference.quantize_int8(weights)
    actual_codes, actual_scales = _ext.quantize_weights("int8-v1", weights)
    same_bits(actual_scales, scales)
    assert (actual_codes == reference.interleave(codes)).all()
    bits = bf16_bits(weights)
    from_bits, from_floats = (
        _ext.quantize_weights("int8-v1", bits),
        _ext.quantize_weights("int8-v1", reference.widen_bf16(bits)),
    )
    assert (from_bits[0] == from_floats[0]).all()
    same_bits(from_bits[1], from_floats[1])


# --- attention


def attention_layer(rng: np.random.Generator, **changes: Any) -> reference_layers.Attention:
    fields: dict[str, Any] = {
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 32,
        "scale": np.float32(32**-0.5),
        "inv_freq": (1e4 ** (-np.arange(8) / 8)).astype(np.float32),
        "q_norm": normal(rng, 32),
        "k_norm": normal(rng, 32),
        "eps": 1e-6,
        "gated": True,
    }
    return reference_layers.Attention(**(fields | changes))


def check_attention(
    layer: reference_layers.Attention,
    rng: np.random.Generator,
    num_past: int,
    tokens: int,
    kv_dtype: Any,
) -> None:
    native = _ext.AttentionLayer(**vars(layer))
    d, kv = layer.head_dim, layer.num_kv_heads
    past = [
        (2 * normal(rng, kv, num_past + tokens + 3, d)).astype(kv_dtype).copy() for _ in range(2)
    ]
    query = 3 * normal(rng, tokens, layer.num_heads * d * (2 if layer.gated else 1))
    key, value = 3 * normal(rng, tokens, kv * d), normal(rng, tokens, kv * d)
    keys, values = (x.copy() for x in past)
    expected = reference_layers.attention(layer, query, key, value, num_past, keys, values)

    def check(runtime: _ext.Runtime) -> None:
        mine = [x.copy() for x in past]
        out = np.empty((tokens, layer.num_heads * d), np.float32)
        runtime.attention(native, query, key, value, num_past, *mine, out)
        same_bits(out, expected)
        assert mine[0].tobytes() == keys.tobytes()
        assert mine[1].tobytes() == values.tobytes()

    every_runtime(check)


@pytest.mark.parametrize("kv_dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("num_past", "tokens"), [(0, 1), (0, 9), (13, 4), (60, 7), (64, 1), (127, 3), (250, 2)]
)
def test_attention_across_key_blocks_is_the_reference_bit_for_bit(
    num_past: int, tokens: int, kv_dtype: Any
) -> None:
    rng = np.random.default_rng(num_past + tokens)
    check_attention(attention_layer(rng), rng, num_past, tokens, kv_dtype)


@pytest.mark.parametrize(("num_past", "tokens"), [(1022, 4), (2047, 2), (1500, 1)])
def test_attention_across_key_segments_is_the_reference_bit_for_bit(
    num_past: int, tokens: int
) -> None:
    rng = np.random.default_rng(num_past)
    layer = attention_layer(rng, num_heads=2, num_kv_heads=1, head_dim=16, gated=False)
    layer = reference_layers.Attention(**(vars(layer) | {"q_norm": None, "k_norm": None}))
    check_attention(layer, rng, num_past, tokens, np.float16)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (5, 1), (8, 2), (4, 4)])
def test_attention_of_any_head_grouping_is_the_reference_bit_for_bit(
    heads: int, kv_heads: int
) -> None:
    rng = np.random.default_rng(heads)
    layer = attention_layer(rng, num_heads=heads, num_kv_heads=kv_heads)
    check_attention(layer, rng, 20, 3, np.float32)


def test_half_precision_keys_keep_ieee_rounding_subnormals_and_overflow() -> None:
    values = np.concatenate([SPECIAL, np.float32(2.0) ** np.arange(-26, 17)])
    values = np.concatenate(
        [values, values * np.float32(1.00049), np.array([65519, 65520], np.float32)]
    )
    values = np.resize(values, (1, 512)).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    layer = _ext.AttentionLayer(1, 1, 512, 1.0, np.empty(0, np.float32), None, None, 1e-6, False)

    def check(runtime: _ext.Runtime) -> None:
        keys, stored = np.zeros((2, 1, 1, 512), np.float16)
        zeros = np.zeros((1, 512), np.float32)
        runtime.attention(layer, zeros, zeros, values, 0, keys, stored, np.empty_like(zeros))
        assert stored.tobytes() == expected.tobytes()

    every_runtime(check)


# --- gated delta rule


def delta_layer(rng: np.random.Generator, **changes: int) -> reference_layers.Delta:
    shape = {"num_key_heads": 2, "num_value_heads": 4, "key_dim": 16, "value_dim": 32} | changes
    kernel = shape.pop("kernel", 4)
    channels = 2 * shape["num_key_heads"] * shape["key_dim"]
    channels += shape["num_value_heads"] * shape["value_dim"]
    return reference_layers.Delta(
        **shape,
        conv_weight=normal(rng, channels, kernel),
        neg_exp_a=-np.abs(normal(rng, shape["num_value_heads"])),
        dt_bias=normal(rng, shape["num_value_heads"]),
        norm_weight=normal(rng, shape["value_dim"]),
        eps=1e-6,
        scale=np.float32(shape["key_dim"] ** -0.5),
    )


@pytest.mark.parametrize("tokens", [1, 2, 5])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"value_dim": 64},
        {"value_dim": 80, "key_dim": 24, "num_key_heads": 1, "num_value_heads": 3},
        {"value_dim": 9, "key_dim": 7, "num_key_heads": 3, "num_value_heads": 3, "kernel": 2},
        {"kernel": 1},
    ],
)
def test_gated_delta_is_the_reference_bit_for_bit(tokens: int, changes: dict[str, int]) -> None:
    rng = np.random.default_rng(tokens)
    layer = delta_layer(rng, **changes)
    native = _ext.DeltaLayer(**vars(layer))
    channels, kernel = layer.conv_weight.shape
    heads, width = layer.num_value_heads, layer.num_value_heads * layer.value_dim
    inputs = [normal(rng, tokens, n) for n in (channels, width, heads, heads)]
    inputs[3] *= 15  # softplus on both sides of 20
    tail, state = (
        normal(rng, channels, kernel - 1),
        normal(rng, heads, layer.key_dim, layer.value_dim),
    )
    expected_tail, expected_state = tail.copy(), state.copy()
    expected = reference_layers.gated_delta(layer, *inputs, expected_tail, expected_state)

    def check(runtime: _ext.Runtime) -> None:
        mine = [tail.copy(), state.copy()]
        out = np.empty((tokens, width), np.float32)
        runtime.gated_delta(native, *inputs, *mine, out)
        same_bits(out, expected)
        same_bits(mine[0], expected_tail)
        same_bits(mine[1], expected_state)

    every_runtime(check)


def test_gated_delta_in_one_call_and_token_by_token_gives_the_same_bits(
    runtime: _ext.Runtime,
) -> None:
    rng = np.random.default_rng(11)
    layer = delta_layer(rng)
    native = _ext.DeltaLayer(**vars(layer))
    channels = len(layer.conv_weight)
    width = layer.num_value_heads * layer.value_dim
    inputs = [normal(rng, 7, n) for n in (channels, width, 4, 4)]
    results = []
    for chunk in (7, 1, 3):
        tail = np.zeros((channels, 3), np.float32)
        state = np.zeros((4, layer.key_dim, layer.value_dim), np.float32)
        out = np.empty((7, width), np.float32)
        for t in range(0, 7, chunk):
            part = [x[t : t + chunk] for x in inputs]
            runtime.gated_delta(native, *part, tail, state, out[t : t + chunk])
        results.append(out.tobytes() + tail.tobytes() + state.tobytes())
    assert len(set(results)) == 1


# --- router and sampler


@settings(max_examples=40, deadline=None)
@given(experts=st.integers(1, 70), tokens=st.integers(1, 9), seed=st.integers(0), data=st.data())
def test_route_is_the_reference_bit_for_bit(
    experts: int, tokens: int, seed: int, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, experts))
    rng = np.random.default_rng(seed)
    logits = (rng.integers(-8, 8, (tokens, experts)) * 2.5).astype(np.float32)  # many ties
    expected_ids, expected_weights = reference_layers.route(logits, k)

    def check(runtime: _ext.Runtime) -> None:
        ids, weights = np.empty((tokens, k), np.int32), np.empty((tokens, k), np.float32)
        runtime.route(logits, k, ids, weights)
        assert (ids == expected_ids).all()
        same_bits(weights, expected_weights)

    every_runtime(check)


@settings(max_examples=60, deadline=None)
@given(
    params=st.builds(
        reference_layers.Sampling,
        temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]),
        top_k=st.sampled_from([0, 1, 5, 40, 1000]),
        top_p=st.sampled_from([0.1, 0.5, 0.9, 0.95, 1.0]),
        min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        presence_penalty=st.sampled_from([0.0, 1.5]),
        seed=st.integers(0, 2**64 - 1),
    ),
    position=st.integers(0, 2**40),
    num_prompt=st.integers(0, 6),
    seed=st.integers(0),
)
def test_sampled_ids_are_those_of_the_reference(
    params: reference_layers.Sampling, position: int, num_prompt: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = (normal(rng, 200) * 3).round(1)  # ties
    history = rng.integers(0, 150, 6).astype(np.int32)
    expected = reference_layers.sample(logits[:150], history.tolist(), params, position, num_prompt)
    native = _ext.SampleParams(**vars(params))

    def check(runtime: _ext.Runtime) -> None:
        assert runtime.sample(logits, history, native, position, 150, num_prompt) == expected

    every_runtime(check)
