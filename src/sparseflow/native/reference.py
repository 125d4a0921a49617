"""A readable NumPy twin of every native op, bit for bit (docs/numerics.md). Only tests use it.

Arrays are float32 unless said; every function returns new arrays. Each line is one IEEE operation of the
definition, so that the order of roundings can be read off. Speed does not matter here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]
U8 = NDArray[np.uint8]
I32 = NDArray[np.int32]

LANES = 16
GROUP = 64
KEY_BLOCK = 64
KEY_SEGMENT = 1024

_MAGIC = np.float32(1.5 * 2.0**23)
_MAGIC_BITS = np.int32(0x4B400000)


def _f32(text: str) -> np.float32:
    return np.float32(float.fromhex(text))


def fma(a: Any, b: Any, c: Any) -> F32:
    """a * b + c rounded once: exact double product, two-sum, round to odd, round to float."""
    with np.errstate(all="ignore"):
        product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
        addend = np.asarray(c, np.float64)
        total = product + addend
        step = total - product
        error = (product - (total - step)) + (addend - step)
        bits = np.atleast_1d(total).view(np.int64)
        toward = np.where(np.atleast_1d((error > 0) == (total > 0)), 1, -1)
        to_odd = np.atleast_1d((error > 0) | (error < 0)) & (bits & 1 == 0)
        odd = np.where(to_odd, bits + toward, bits).view(np.float64)
        return odd.reshape(total.shape).astype(np.float32)


def tree(lanes: F32) -> F32:
    """Sum over the last axis of 16: lanes i and i + 8, then + 4, + 2, + 1."""
    with np.errstate(all="ignore"):
        for half in (8, 4, 2, 1):
            lanes = lanes[..., :half] + lanes[..., half : 2 * half]
        return lanes[..., 0]


def dot(a: F32, b: F32) -> F32:
    """Sum over the last axis: 16 partial sums by k mod 16, one fma each, then the tree; missing k are skipped."""
    a, b = np.broadcast_arrays(a, b)
    lanes = np.zeros((*a.shape[:-1], LANES), np.float32)
    for k in range(0, a.shape[-1], LANES):
        x, y = a[..., k : k + LANES], b[..., k : k + LANES]
        present = x.shape[-1]
        lanes[..., :present] = fma(x, y, lanes[..., :present])
    return tree(lanes)


def exp(x: Any) -> F32:
    """2^n times a polynomial of degree 6 in x - n ln 2; +0 below -87.3, infinite above 89."""
    x = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        shifted = fma(x, _f32("0x1.715476p+0"), _MAGIC)
        n = shifted - _MAGIC
        r = fma(n, _f32("-0x1.62e4p-1"), x)
        r = fma(n, _f32("-0x1.7f7d1cp-20"), r)
        p: Any = _f32("0x1.6a23ccp-10")
        for coefficient in (
            "0x1.123a2p-7",
            "0x1.5558f2p-5",
            "0x1.555492p-3",
            "0x1.fffffcp-2",
            "0x1p0",
            "0x1p0",
        ):
            p = fma(p, r, _f32(coefficient))
        exponent = np.atleast_1d(shifted).view(np.int32).reshape(x.shape) - _MAGIC_BITS
        half = exponent >> 1
        p = p * _power_of_two(half)
        p = p * _power_of_two(exponent - half)
        p = np.where(np.float32(-87.3) > x, np.float32(0), p)
        return np.where(x > np.float32(89), np.float32(np.inf), p).astype(np.float32)


def _power_of_two(exponent: Any) -> F32:
    bits = np.atleast_1d((np.asarray(exponent, np.int32) + np.int32(127)) << np.int32(23))
    return bits.astype(np.int32).view(np.float32).reshape(np.shape(exponent))


def log1p(y: Any) -> F32:
    """log(1 + y) for y >= 0, through u = fl(1 + y) = 2^k m, m in [sqrt(1/2), sqrt(2)), and u's rounding error."""
    y = np.asarray(y, np.float32)
    one = np.float32(1)
    with np.errstate(all="ignore"):
        u = one + y
        rest = np.where(y > one, one - (u - y), y - (u - one))
        scaled = np.atleast_1d(u).view(np.int32) + np.int32(0x3F800000 - 0x3F3504F3)
        k = ((scaled >> 23) - 127).astype(np.float32).reshape(y.shape)
        m = ((scaled & 0x007FFFFF) + np.int32(0x3F3504F3)).view(np.float32).reshape(y.shape)
        f = m - one
        s = f / (np.float32(2) + f)
        z = s * s
        p = fma(_f32("0x1.31e33cp-2"), z, _f32("0x1.995eb8p-2"))
        p = fma(p, z, _f32("0x1.55557ap-1"))
        half_square = np.float32(0.5) * (f * f)
        low = fma(k, _f32("0x1.7f7d1cp-20"), rest / u)
        correction = fma(s, fma(p, z, half_square), low)
        return fma(k, _f32("0x1.62e4p-1"), f - (half_square - correction))


def sigmoid(x: Any) -> F32:
    """1 / (1 + exp(-x))."""
    one = np.float32(1)
    with np.errstate(all="ignore"):
        return np.asarray(one / (one + exp(np.float32(0) - np.asarray(x, np.float32))))


def silu(x: Any) -> F32:
    """x * sigmoid(x)."""
    with np.errstate(all="ignore"):
        return np.asarray(np.asarray(x, np.float32) * sigmoid(x))


def silu_multiply(gate: F32, up: F32) -> F32:
    """silu(gate) * up."""
    with np.errstate(all="ignore"):
        return silu(gate) * up


def softplus(x: Any) -> F32:
    """log(1 + exp(x)); x itself above 20."""
    x = np.asarray(x, np.float32)
    return np.where(x > np.float32(20), x, log1p(exp(x))).astype(np.float32)


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """(x * (1 / sqrt(mean(x^2) + eps))) * weight over the last axis."""
    with np.errstate(all="ignore"):
        mean = dot(x, x) / np.float32(x.shape[-1])
        inverse = np.float32(1) / np.sqrt(mean + np.float32(eps))
        return np.asarray(x * inverse[..., None] * weight)


def l2_norm(x: F32, eps: float = 1e-6) -> F32:
    """x * (1 / sqrt(sum(x^2) + eps)) over the last axis."""
    with np.errstate(all="ignore"):
        inverse = np.float32(1) / np.sqrt(dot(x, x) + np.float32(eps))
        return np.asarray(x * inverse[..., None])


@dataclass(frozen=True)
class QuantizedActivations:
    """Codes int8 [T, groups, 64], one scale and one sum of codes per token and group."""

    codes: I8
    scales: F32
    sums: I32


def quantize_activations(x: F32) -> QuantizedActivations:
    """Signed codes in [-127, 127]; a group below 2^-100 is zero; a value that is not finite makes the scale so."""
    tokens, cols = x.shape
    padded = -(-cols // GROUP) * GROUP
    groups = np.zeros((tokens, padded), np.float32)
    groups[:, :cols] = x
    groups = groups.reshape(tokens, -1, GROUP)
    with np.errstate(all="ignore"):
        amax = (groups.view(np.int32) & 0x7FFFFFFF).max(axis=-1).view(np.float32)
        small = amax < np.float32(2.0**-100)
        scaled = groups * (np.float32(127) / amax)[..., None]
        clamped = np.where(scaled > np.float32(-127), scaled, np.float32(-127))
        clamped = np.where(clamped < np.float32(127), clamped, np.float32(127))
        codes = np.where(small[..., None], 0, (clamped + _MAGIC).view(np.int32) - _MAGIC_BITS)
        scales = np.where(small, np.float32(0), amax / np.float32(127)).astype(np.float32)
    return QuantizedActivations(codes.astype(np.int8), scales, codes.sum(-1).astype(np.int32))


def quantize_int8(weights: F32) -> tuple[U8, F32]:
    """Codes + 128 [rows padded to 16, cols padded to 64] not yet interleaved, scales [rows padded to 16]."""
    rows, cols = weights.shape
    shape = (-(-rows // LANES) * LANES, -(-cols // GROUP) * GROUP)
    padded = np.zeros(shape, np.float32)
    padded[:rows, :cols] = weights
    scales = np.abs(padded).max(axis=1) / np.float32(127)
    with np.errstate(all="ignore"):
        rounded = (padded / scales[:, None] + _MAGIC) - _MAGIC
    codes = np.where(scales[:, None] == 0, np.float32(0), np.clip(rounded, -127, 127))
    return (codes + np.float32(128)).astype(np.uint8), scales


def interleave(codes: U8) -> U8:
    """[rows, cols] -> 1-D [rows/16][cols/4][16][4], the order of the int8-v1 format."""
    rows, cols = codes.shape
    blocks = codes.reshape(rows // LANES, LANES, cols // 4, 4).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(blocks).reshape(-1)


def int8_linear(codes: U8, scales: F32, x: F32) -> F32:
    """x [T, cols] times the quantized rows: exact integer sums, one fma a group, groups in increasing order."""
    quantized = quantize_activations(x)
    num_groups = quantized.codes.shape[1]
    weights = codes.reshape(codes.shape[0], num_groups, GROUP).astype(np.int32) - 128
    acc = np.zeros((x.shape[0], codes.shape[0]), np.float32)
    with np.errstate(all="ignore"):
        for g in range(num_groups):
            sums = quantized.codes[:, g].astype(np.int32) @ weights[:, g].T
            acc = fma(sums.astype(np.float32), quantized.scales[:, g, None] * scales[None], acc)
    return acc


def interleave_int4(codes: U8) -> U8:
    """Codes + 8 [rows, cols] -> 1-D [rows/16][cols/8][16][4], two inputs a byte, the order of the 4-bit formats."""
    rows, cols = codes.shape
    blocks = codes.reshape(rows // LANES, LANES, cols // 8, 2, 4).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(blocks[:, :, 0] | blocks[:, :, 1] << 4).reshape(-1)


def interleave_int6(codes: U8) -> U8:
    """Codes + 32 [rows, cols] -> 1-D, for each 16 rows and 64 inputs 512 bytes of low and 256 of high bits."""
    rows, cols = codes.shape
    shape = (rows // LANES, cols // GROUP, 512)
    low = interleave_int4(codes & np.uint8(15)).reshape(shape)
    parts = (codes >> 4).reshape(rows // LANES, LANES, cols // GROUP, 4, 4, 4)
    parts = parts.transpose(0, 2, 3, 4, 1, 5)  # [blocks, groups, step, part, row, byte]
    high = (
        parts[:, :, :, 0] | parts[:, :, :, 1] << 2 | parts[:, :, :, 2] << 4 | parts[:, :, :, 3] << 6
    )
    return np.concatenate([low, high.reshape(*shape[:2], 256)], axis=2).reshape(-1)


def interleave_scales(scales: NDArray[np.float16]) -> NDArray[np.float16]:
    """[rows, groups] -> 1-D [rows/16][groups][16], the order of the formats with a scale for each group."""
    rows, groups = scales.shape
    return np.ascontiguousarray(
        scales.reshape(rows // LANES, LANES, groups).transpose(0, 2, 1)
    ).reshape(-1)


def group_linear(codes: U8, offset: int, scales: NDArray[np.float16], x: F32) -> F32:
    """As int8_linear, with codes + offset [rows, cols] and scales [rows, groups] of groups of 64 or 32 inputs."""
    quantized = quantize_activations(x)
    num_groups = scales.shape[1]
    size = codes.shape[1] // num_groups
    inputs = quantized.codes.reshape(len(x), num_groups, size)
    weights = codes.reshape(codes.shape[0], num_groups, size).astype(np.int32) - offset
    wide = scales.astype(np.float32)
    acc = np.zeros((x.shape[0], codes.shape[0]), np.float32)
    with np.errstate(all="ignore"):
        for g in range(num_groups):
            sums = inputs[:, g].astype(np.int32) @ weights[:, g].T
            x_scales = quantized.scales[:, g * size // GROUP, None]
            acc = fma(sums.astype(np.float32), x_scales * wide[None, :, g], acc)
    return acc


def float_linear(weights: F32, x: F32) -> F32:
    """x [T, cols] times float weights [rows, cols] (bfloat16 ones already widened)."""
    return dot(weights[None], x[:, None])


def widen_bf16(bits: NDArray[np.uint16]) -> F32:
    """bfloat16 bit patterns as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rotary_angles(position: int, inv_freq: F32) -> tuple[F32, F32]:
    """Cosines and sines of float32(position * inv_freq): reduction and Taylor series in double, rounded once."""
    x = (np.float32(position) * inv_freq).astype(np.float64)
    n = (x * float.fromhex("0x1.45f306dc9c883p-1") + 1.5 * 2.0**52) - 1.5 * 2.0**52
    r = x - n * float.fromhex("0x1.921fb544p+0")
    r = r - n * float.fromhex("0x1.0b4611a4p-34")
    r = r - n * float.fromhex("0x1.13198a2e03707p-65")
    z = r * r
    s = np.full_like(z, -1.0 / 1307674368000.0)
    for term in (6227020800.0, -39916800.0, 362880.0, -5040.0, 120.0, -6.0):
        s = s * z + 1.0 / term
    c = np.full_like(z, 1.0 / 20922789888000.0)
    for term in (-87178291200.0, 479001600.0, -3628800.0, 40320.0, -720.0, 24.0, -2.0):
        c = c * z + 1.0 / term
    sine, cosine = r + r * (z * s), 1.0 + z * c
    quadrant = n.astype(np.int64) & 3
    cosines = np.choose(quadrant, [cosine, -sine, -cosine, sine])
    sines = np.choose(quadrant, [sine, cosine, -sine, -cosine])
    return cosines.astype(np.float32), sines.astype(np.float32)


def rotate(x: F32, cosines: F32, sines: F32) -> F32:
    """Pairs (i, i + n/2) of the first n = rotary_dim channels of the last axis."""
    half = cosines.shape[-1]
    out = x.copy()
    a, b = x[..., :half], x[..., half : 2 * half]
    out[..., :half] = a * cosines - b * sines
    out[..., half : 2 * half] = b * cosines + a * sines
    return out
