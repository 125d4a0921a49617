"""What the extension refuses, and the accuracy of its own elementary functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparseflow.errors import ConfigError, ContainerError, UnsupportedError
from sparseflow.native import _ext, reference, reference_layers

RUNTIME = _ext.Runtime()


def f32(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.zeros(shape, np.float32)


def int8_matrix(rows: int, cols: int) -> _ext.Matrix:
    return _ext.Matrix("int8-v1", rows, cols, *_ext.quantize_weights("int8-v1", f32(rows, cols)))


ATTENTION = _ext.AttentionLayer(2, 1, 16, 1.0, f32(4), None, None, 1e-6, False)
DELTA = _ext.DeltaLayer(1, 2, 4, 8, f32(24, 4), f32(2), f32(2), f32(8), 1e-6, 1.0)


def float_matrix(rows: int, cols: int) -> _ext.Matrix:
    return _ext.Matrix("float32", rows, cols, np.zeros(4 * rows * cols, np.uint8))


def delta_block() -> _ext.DeltaBlock:
    in_proj = [float_matrix(rows, 8) for rows in (24, 16, 2, 2)]
    return _ext.DeltaBlock(f32(8), 1e-6, in_proj, DELTA, float_matrix(8, 16))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "linear x": (
        lambda: RUNTIME.linear([int8_matrix(8, 70)], f32(3, 71), [f32(3, 8)]),
        r"x: expected shape \[3, 70\], got \[3, 71\]",
    ),
    "linear out": (
        lambda: RUNTIME.linear([int8_matrix(8, 70)], f32(3, 70), [f32(3, 16)]),
        r"outs: expected shape \[3, 8\], got \[3, 16\]",
    ),
    "linear count": (lambda: RUNTIME.linear([], f32(1, 1), [f32(1, 1)]), "as many outs as weights"),
    "rms_norm weight": (
        lambda: RUNTIME.rms_norm(f32(2, 8), f32(9), 1e-6, f32(2, 8)),
        r"weight: expected shape \[8\], got \[9\]",
    ),
    "add": (lambda: RUNTIME.add(f32(2, 8), f32(8, 2)), r"y: expected the shape of x, \[2, 8\]"),
    "attention query": (
        lambda: RUNTIME.attention(
            ATTENTION,
            f32(1, 64),
            f32(1, 16),
            f32(1, 16),
            0,
            f32(1, 4, 16),
            f32(1, 4, 16),
            f32(1, 32),
        ),
        r"query: expected shape \[1, 32\]",
    ),
    "attention capacity": (
        lambda: RUNTIME.attention(
            ATTENTION,
            f32(2, 32),
            f32(2, 16),
            f32(2, 16),
            3,
            f32(1, 4, 16),
            f32(1, 4, 16),
            f32(2, 32),
        ),
        "exceed the capacity of 4 keys",
    ),
    "attention cache dtype": (
        lambda: RUNTIME.attention(
            ATTENTION,
            f32(1, 32),
            f32(1, 16),
            f32(1, 16),
            0,
            np.zeros((1, 4, 16)),
            np.zeros((1, 4, 16)),
            f32(1, 32),
        ),
        "keys: expected float32 or float16",
    ),
    "attention head_dim": (
        lambda: _ext.AttentionLayer(2, 1, 20, 1.0, f32(4), None, None, 1e-6, False),
        "head_dim: must be a multiple of 16",
    ),
    "attention heads": (
        lambda: _ext.AttentionLayer(3, 2, 16, 1.0, f32(4), None, None, 1e-6, False),
        "num_heads: must be a positive multiple",
    ),
    "delta state": (
        lambda: RUNTIME.gated_delta(
            DELTA,
            f32(1, 24),
            f32(1, 16),
            f32(1, 2),
            f32(1, 2),
            f32(24, 3),
            f32(2, 8, 4),
            f32(1, 16),
        ),
        r"state: expected shape \[2, 4, 8\]",
    ),
    "delta conv": (
        lambda: _ext.DeltaLayer(1, 2, 4, 8, f32(23, 4), f32(2), f32(2), f32(8), 1e-6, 1.0),
        r"conv_weight: expected shape \[24, 4\]",
    ),
    "block projection": (
        lambda: _ext.DeltaBlock(
            f32(8), 1e-6, [float_matrix(24, 8)] * 4, DELTA, float_matrix(8, 16)
        ),
        r"in_proj\[1\]: expected a matrix \[16, 8\]",
    ),
    "block projections": (
        lambda: _ext.DeltaBlock(f32(8), 1e-6, [float_matrix(24, 8)], DELTA, float_matrix(8, 16)),
        "in_proj: expected 4 matrices",
    ),
    "block output": (
        lambda: _ext.AttentionBlock(
            f32(8),
            1e-6,
            [float_matrix(32, 8), float_matrix(16, 8), float_matrix(16, 8)],
            ATTENTION,
            float_matrix(8, 33),
        ),
        r"out_proj: expected a matrix \[8, 32\]",
    ),
    "block rows": (
        lambda: delta_block().forward(RUNTIME, f32(1, 9), f32(24, 3), f32(2, 4, 8)),
        r"x: expected shape \[1, 8\]",
    ),
    "block state": (
        lambda: delta_block().forward(RUNTIME, f32(1, 8), f32(24, 3), f32(2, 8, 4)),
        r"state: expected shape \[2, 4, 8\]",
    ),
    "router norm": (
        lambda: _ext.Router(f32(9), 1e-6, float_matrix(4, 8)),
        r"norm_weight: expected shape \[8\]",
    ),
    "router k": (
        lambda: _ext.Router(f32(8), 1e-6, float_matrix(4, 8)).forward(
            RUNTIME, f32(1, 8), f32(1, 8), np.zeros((1, 5), np.int32), f32(1, 5)
        ),
        "k: must be in 1 to the number of experts, 4, got 5",
    ),
    "route k": (
        lambda: RUNTIME.route(f32(1, 4), 5, np.zeros((1, 5), np.int32), f32(1, 5)),
        "k: must be in 1 to the number of experts, 4, got 5",
    ),
    "matrix codes": (
        lambda: _ext.Matrix("int8-v1", 8, 70, np.zeros(10, np.uint8), f32(16)),
        r"codes: expected shape \[2048\], got \[10\]",
    ),
    "matrix without scales": (
        lambda: _ext.Matrix("int8-v1", 1, 1, np.zeros(1024, np.uint8)),
        "scales: int8-v1 needs them",
    ),
    "matrix with scales": (
        lambda: _ext.Matrix("bf16-v1", 1, 1, np.zeros(2, np.uint8), f32(16)),
        "scales: bf16-v1 has none",
    ),
    "matrix dimensions": (
        lambda: _ext.Matrix("float32", 2**62, 2**62, np.zeros(0, np.uint8)),
        "rows and cols must be in 1 to",
    ),
    "format": (lambda: _ext.matrix_code_bytes("fp8", 1, 1), "known: bf16-v1, int8-v1, int8-g64-v1"),
    "isa": (lambda: _ext.Runtime("sse9"), "unknown isa 'sse9'; known: auto, .*portable"),
    "threads": (lambda: _ext.Runtime("auto", 0), "threads: 0 is not in 1 to"),
    "temperature": (lambda: _ext.SampleParams(temperature=-1), "temperature"),
    "top_p": (lambda: _ext.SampleParams(top_p=0), "top_p"),
    "quantize": (
        lambda: _ext.quantize_weights("int8-v1", np.array([[1], [np.inf]], np.float32)),
        "row 1 has a value that is not finite",
    ),
}


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_wrong_arguments_are_refused_by_name(what: str) -> None:
    call, message = REFUSED[what]
    with pytest.raises(ConfigError, match=message):
        call()


def test_arrays_are_never_converted_in_silence() -> None:
    """A converted output would be a copy, and the caller's array would stay as it was."""
    for bad in (np.zeros((2, 8)), np.zeros((2, 16), np.float32)[:, ::2], f32(8, 2).T):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            RUNTIME.exp(f32(2, 8), bad)


def test_a_scale_that_is_not_finite_is_refused() -> None:
    scales = np.full(16, np.nan, np.float32)
    with pytest.raises(ContainerError, match="a scale is not finite"):
        _ext.Matrix("int8-v1", 1, 1, np.zeros(1024, np.uint8), scales)


def test_scales_of_the_wrong_type_are_refused() -> None:
    for weight_format, scales in (
        ("int8-v1", np.ones(16, np.float16)),
        ("int4-g64-v1", np.ones(16, np.float32)),
    ):
        codes = np.zeros(_ext.matrix_code_bytes(weight_format, 1, 1), np.uint8)
        with pytest.raises(ConfigError, match=f"{weight_format} has float"):
            _ext.Matrix(weight_format, 1, 1, codes, scales)


def test_an_instruction_set_that_the_cpu_lacks_is_unsupported() -> None:
    lacking = set(_ext.known_isa_names()) - set(_ext.isa_names())
    for name in lacking:
        with pytest.raises(UnsupportedError, match="this CPU lacks it"):
            _ext.Runtime(name)
    assert _ext.isa_names()[-1] == "portable"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_an_error(bad: float) -> None:
    logits = f32(40)
    assert RUNTIME.is_finite(logits)
    logits[30] = bad
    assert not RUNTIME.is_finite(logits)
    history = np.empty(0, np.int32)
    with pytest.raises(ConfigError, match="not finite"):
        RUNTIME.sample(logits, history, _ext.SampleParams(), 0, 40)
    RUNTIME.sample(logits, history, _ext.SampleParams(), 0, 30)  # beyond the valid ids
    with pytest.raises(ConfigError, match="not finite"):
        RUNTIME.route(logits[None], 2, np.zeros((1, 2), np.int32), f32(1, 2))


def test_greedy_choice_takes_the_lower_of_equal_logits() -> None:
    logits = np.array([1, 3, 3, 2], np.float32)
    greedy = _ext.SampleParams(temperature=0)
    history = np.array([1], np.int32)
    assert RUNTIME.sample(logits, history, greedy, 0, 4) == 1
    penal = _ext.SampleParams(temperature=0, presence_penalty=0.5)
    assert RUNTIME.sample(logits, history, penal, 0, 4) == 2
    assert RUNTIME.sample(logits, history, penal, 0, 4, num_prompt=1) == 1
    assert RUNTIME.sample(logits, history, greedy, 0, 1) == 0


def test_sampled_frequencies_follow_the_softmax() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32)).astype(np.float32)
    params = _ext.SampleParams(seed=7)
    history = np.empty(0, np.int32)
    counts = np.zeros(3)
    for position in range(20000):
        counts[RUNTIME.sample(logits, history, params, position, 3)] += 1
    assert np.abs(counts / 20000 - [0.5, 0.3, 0.2]).max() < 0.015


def test_philox_gives_the_published_vectors() -> None:
    """Random123's known answers for a zero counter and key, and our use of two words as 53 bits."""
    word = 0x6627E8D5E169C58D
    assert _ext.philox_uniform(0, 0) == (word >> 11) * 2.0**-53
    for seed, position in ((0, 0), (1, 2), (2**64 - 1, 2**64 - 1), (123456789, 987654321)):
        assert _ext.philox_uniform(seed, position) == reference_layers.philox_uniform(
            seed, position
        )


def test_exp_is_within_two_ten_millionths_of_the_true_value() -> None:
    x = np.concatenate(
        [np.linspace(-87.3, 88.7228, 400001), np.linspace(-1e-3, 1e-3, 20001)]
    ).astype(np.float32)
    out = np.empty_like(x)
    RUNTIME.exp(x, out)
    error = np.abs(out.astype(np.float64) / np.exp(x.astype(np.float64)) - 1)
    assert error.max() <= 2e-7


def test_softplus_and_sigmoid_are_within_three_ten_millionths_of_the_true_value() -> None:
    x = np.linspace(-80, 30, 100001).astype(np.float32)
    wide = x.astype(np.float64)
    softplus = np.abs(reference.softplus(x) / np.log1p(np.exp(wide)) - 1)
    assert softplus.max() <= 3e-7
    sigmoid = np.abs(reference.sigmoid(x) * (1 + np.exp(-wide)) - 1)
    assert sigmoid.max() <= 3e-7


def test_rotary_angles_are_correctly_rounded_up_to_a_million_positions() -> None:
    rng = np.random.default_rng(3)
    inv_freq = (1e7 ** (-np.arange(32) / 32)).astype(np.float32)
    for position in [0, 1, 2, 1000, 262143, *rng.integers(0, 2**20, 200).tolist()]:
        cosines, sines = reference.rotary_angles(position, inv_freq)
        angle = (np.float32(position) * inv_freq).astype(np.float64)
        assert (np.abs(cosines - np.cos(angle)) <= 2.0**-25 * (1 + 1e-6)).all()
        assert (np.abs(sines - np.sin(angle)) <= 2.0**-25 * (1 + 1e-6)).all()


def test_native_time_is_booked_on_its_part_and_starts_again() -> None:
    runtime = _ext.Runtime("auto", 1)
    weights = np.zeros(64 * 64, np.uint16)
    matrix = _ext.Matrix("bf16-v1", 64, 64, weights.view(np.uint8))
    x, out = np.zeros((1, 64), np.float32), np.zeros((1, 64), np.float32)
    runtime.take_times()
    runtime.linear([matrix], x, [out], "head")
    runtime.add(x, out)
    times = runtime.take_times()
    booked = {part for part, seconds in times.items() if seconds > 0}
    assert booked == {"head", "norm"}
    assert set(runtime.take_times().values()) == {0.0}
    with pytest.raises(ConfigError, match="unknown part 'tail'; known: embedding, norm"):
        runtime.linear([matrix], x, [out], "tail")
