"""Whether the kernels of every instruction set of this CPU give the same bytes, on this machine, now.

Inputs come from a counter by integer operations and exact scalings, so that nothing but the kernels is judged. What the
portable kernels give is also held against a recorded hash: it is the same on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparseflow.container.matrix_sizes import INTEGER_BITS, scale_item_bytes
from sparseflow.container.recipes import BF16, KNOWN_FORMATS
from sparseflow.native import _ext

F32 = NDArray[np.float32]
Outputs = Mapping[str, bytes]
"""What every case gave, by its name."""

REFERENCE_ISA = "portable"
THREADS = 2
EPS = 1e-6
ROWS, COLS = 88, 328
"""Multiples of neither 16 rows nor 64 columns: padding takes part."""
QUANTIZER = "quantizer"
RECORDED = "28680285218ca49ba078efafbdad44a31916c41064761d1bddcec72d9781601d"
"""SHA-256 over what the portable kernels give in all cases but the quantizers', which may learn better scales."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What was compared, and every difference: one line each."""

    isas: tuple[str, ...]
    num_cases: int
    findings: tuple[str, ...]


def self_test(threads: int = THREADS) -> SelfTest:
    """Runs every case with every instruction set that this CPU has; takes well below a second."""
    isas = tuple(_ext.isa_names())
    outputs = {isa: run_cases(_ext.Runtime(isa, threads)) for isa in isas}
    return SelfTest(isas, len(_CASES), tuple(find_differences(outputs)))


def find_differences(outputs: Mapping[str, Outputs], recorded: str = "") -> list[str]:
    """One line for each case of each instruction set whose bytes are not the portable ones, and one if those are not
    what was recorded.

    outputs: by instruction set, the portable one among them. recorded: SHA-256; by default that of this version.
    """
    reference = outputs[REFERENCE_ISA]
    found = [
        f"{isa}: {name} differs from {REFERENCE_ISA}"
        for isa, results in outputs.items()
        for name, result in results.items()
        if result != reference[name]
    ]
    if digest(reference) != (recorded or RECORDED):
        found.append(f"{REFERENCE_ISA}: differs from what every machine must give")
    return found


def digest(results: Outputs) -> str:
    """SHA-256 of what is held against RECORDED."""
    sha256 = hashlib.sha256()
    for name in sorted(results):
        if not name.startswith(QUANTIZER):
            sha256.update(results[name])
    return sha256.hexdigest()


def run_cases(runtime: _ext.Runtime) -> dict[str, bytes]:
    """What every case gives with one runtime."""
    return {
        name: b"".join(array.tobytes() for array in case(runtime)) for name, case in _CASES.items()
    }


def _integers(count: int, seed: int) -> NDArray[np.uint32]:
    """Numbers without a pattern that kernels could share: a counter, multiplied and folded, modulo 2^32."""
    x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B1) + np.uint64(seed << 16)
    x = (x ^ (x >> np.uint64(15))) * np.uint64(0x85EBCA77) & np.uint64(0xFFFFFFFF)
    return (x ^ (x >> np.uint64(13))).astype(np.uint32)


def _floats(seed: int, *shape: int, power: int = 0) -> F32:
    """Multiples of 2^-15 within (-1, 1], exact, times 2^power."""
    count = int(np.prod(shape))
    whole = (_integers(count, seed) & np.uint32(0xFFFF)).astype(np.int32) - np.int32(32767)
    return np.ldexp(whole.astype(np.float32), power - 15).reshape(shape)


def _bytes(count: int, seed: int) -> NDArray[np.uint8]:
    return (_integers(count, seed) >> np.uint32(11)).astype(np.uint8)


def _matrix(weight_format: str, rows: int, cols: int, seed: int) -> _ext.Matrix:
    """Any bytes are codes of the integer formats; scales are small and positive."""
    nbytes = _ext.matrix_code_bytes(weight_format, rows, cols)
    if weight_format not in INTEGER_BITS:
        values = _floats(seed, rows, cols)
        bits = values.view(np.uint32) >> np.uint32(16)
        raw = bits.astype(np.uint16) if weight_format == BF16 else values
        return _ext.Matrix(weight_format, rows, cols, raw.reshape(-1).view(np.uint8))
    dtype = np.float16 if scale_item_bytes(weight_format) == 2 else np.float32
    count = _ext.matrix_scale_bytes(weight_format, rows, cols) // scale_item_bytes(weight_format)
    steps = (_integers(count, seed + 1) & np.uint32(0x3FF)) + np.uint32(1)
    scales: NDArray[Any] = np.ldexp(steps.astype(np.float32), -16).astype(dtype)
    return _ext.Matrix(weight_format, rows, cols, _bytes(nbytes, seed), scales)


def _linear(weight_format: str, num_tokens: int) -> Callable[[_ext.Runtime], Sequence[F32]]:
    def case(runtime: _ext.Runtime) -> Sequence[F32]:
        out = np.empty((num_tokens, ROWS), np.float32)
        x = _floats(3, num_tokens, COLS, power=3)
        runtime.linear([_matrix(weight_format, ROWS, COLS, 5)], x, [out])
        return (out,)

    return case


def _quantize(weight_format: str) -> Callable[[_ext.Runtime], Sequence[NDArray[Any]]]:
    def case(runtime: _ext.Runtime) -> Sequence[NDArray[Any]]:
        return _ext.quantize_weights(weight_format, _floats(7, ROWS, COLS), runtime.isa)

    return case


def _elementwise(runtime: _ext.Runtime) -> Sequence[F32]:
    x, y = _floats(11, 5, 1303, power=6), _floats(13, 5, 1303, power=2)
    exponentials, products, total, widened = (np.empty_like(x) for _ in range(4))
    runtime.exp(x, exponentials)
    runtime.silu_multiply(x, y, products)
    total[:] = x
    runtime.add(total, y)
    runtime.bf16_to_float((y.view(np.uint32) >> np.uint32(16)).astype(np.uint16), widened)
    return exponentials, products, total, widened


def _norm(runtime: _ext.Runtime) -> Sequence[F32]:
    x = _floats(17, 3, 301, power=4)
    out = np.empty_like(x)
    runtime.rms_norm(x, _floats(19, 301), EPS, out)
    return (out,)


def _attention(dtype: Any) -> Callable[[_ext.Runtime], Sequence[NDArray[Any]]]:
    """Seven new tokens after 70: more than one block of keys."""

    def case(runtime: _ext.Runtime) -> Sequence[NDArray[Any]]:
        heads, kv_heads, dim, past, new = 6, 2, 32, 70, 7
        frequencies = np.ldexp(np.float32(1), -np.arange(8)).astype(np.float32)
        norms = _floats(23, dim), _floats(29, dim)
        layer = _ext.AttentionLayer(
            heads, kv_heads, dim, 2**-2.5, frequencies, *norms, EPS, gated=True
        )
        shape = (kv_heads, past + new, dim)
        keys, values = (_floats(seed, *shape, power=1).astype(dtype) for seed in (31, 37))
        query = _floats(41, new, heads * dim * 2, power=2)
        key, value = (_floats(seed, new, kv_heads * dim, power=2) for seed in (43, 47))
        out = np.empty((new, heads * dim), np.float32)
        runtime.attention(layer, query, key, value, past, keys, values, out)
        return out, keys, values

    return case


def _delta(runtime: _ext.Runtime) -> Sequence[F32]:
    key_heads, heads, key_dim, dim, new, kernel = 2, 4, 16, 40, 5, 4
    channels = 2 * key_heads * key_dim + heads * dim
    layer = _ext.DeltaLayer(
        key_heads,
        heads,
        key_dim,
        dim,
        _floats(53, channels, kernel),
        -np.abs(_floats(59, heads)),
        _floats(61, heads),
        _floats(67, dim),
        EPS,
        0.25,
    )
    qkv, z, b = _floats(71, new, channels), _floats(73, new, heads * dim), _floats(79, new, heads)
    a = _floats(83, new, heads, power=5)
    tail, state = _floats(89, channels, kernel - 1), _floats(97, heads, key_dim, dim)
    out = np.empty((new, heads * dim), np.float32)
    runtime.gated_delta(layer, qkv, z, b, a, tail, state, out)
    return out, tail, state


def _choices(runtime: _ext.Runtime) -> Sequence[NDArray[Any]]:
    """The router's, with ties among its logits, and the sampler's."""
    logits = np.rint(_floats(101, 4, 130, power=3))
    ids, weights = np.empty((4, 8), np.int32), np.empty((4, 8), np.float32)
    runtime.route(logits, 8, ids, weights)
    params = _ext.SampleParams(temperature=0.75, top_k=40, top_p=0.9, min_p=0.01, seed=7)
    history = np.arange(6, dtype=np.int32)
    words = _floats(103, 997, power=3)
    drawn = [runtime.sample(words, history, params, place, 990) for place in range(32)]
    return ids, weights, np.array(drawn, np.int32)


_CASES: dict[str, Callable[[_ext.Runtime], Sequence[NDArray[Any]]]] = {
    **{f"linear {name}, {n} tokens": _linear(name, n) for name in KNOWN_FORMATS for n in (1, 7)},
    **{f"{QUANTIZER} {name}": _quantize(name) for name in INTEGER_BITS},
    "exp, silu, add, bf16": _elementwise,
    "norm": _norm,
    "attention float32": _attention(np.float32),
    "attention float16": _attention(np.float16),
    "gated delta": _delta,
    "router and sampler": _choices,
}
