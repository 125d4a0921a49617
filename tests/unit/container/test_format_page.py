"""A reader written from docs/sfi_format.md alone: json, struct and NumPy; of ours only what makes the containers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import deserialize

from make_synthetic_checkpoint import make, parse_options
from sparseflow.container.recipes import RECIPES, Recipe
from sparseflow.prepare.prepare import prepare

PREFIX = "model.language_model."
LAYER, EXPERT = 1, 17


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint in one file."""
    words = ["--tiny", "--layers", "2", "--shards", "1", str(tmp_path_factory.mktemp("source"))]
    return make(parse_options(words))


def published(source: Path, name: str) -> NDArray[np.float64]:
    """A tensor's values as the safetensors library reads them."""
    tensor = dict(deserialize((source / "model.safetensors").read_bytes()))[name]
    return widen(tensor["data"]).reshape(tensor["shape"])


def widen(raw: bytes) -> NDArray[np.float64]:
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def code_at(weight_format: str, codes: bytes, padded: int, r: int, c: int) -> int:
    """The code of a weight, less what the format adds to it."""
    if weight_format in ("int8-v1", "int8-g64-v1"):
        return codes[((r // 16 * (padded // 4) + c // 4) * 16 + r % 16) * 4 + c % 4] - 128
    if weight_format in ("int4-g64-v1", "int4-g32-v1"):
        byte = codes[((r // 16 * (padded // 8) + c // 8) * 16 + r % 16) * 4 + c % 4]
        return (byte % 16 if c % 8 < 4 else byte // 16) - 8
    assert weight_format == "int6-g64-v1"
    begin, k = 768 * (r // 16 * (padded // 64) + c // 64), c % 64
    low = codes[begin + (k // 8 * 16 + r % 16) * 4 + k % 4]
    high = codes[begin + 512 + (k // 16 * 16 + r % 16) * 4 + k % 4]
    return (low % 16 if k % 8 < 4 else low // 16) + 16 * (high >> 2 * (k % 16 // 4) & 3) - 32


def decode(
    weight_format: str, codes: bytes, scales: bytes, rows: int, cols: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights [rows, cols] of an integer format, and the magnitude of the scale of each."""
    padded = -(-cols // 64) * 64
    weights, steps = np.empty((rows, cols)), np.empty((rows, cols))
    numbers = np.frombuffer(scales, "<f4" if weight_format == "int8-v1" else "<f2")
    for r in range(rows):
        for c in range(cols):
            group = r if weight_format == "int8-v1" else 0
            if weight_format != "int8-v1":
                size = 32 if weight_format == "int4-g32-v1" else 64
                group = (r // 16 * (padded // size) + c // size) * 16 + r % 16
            scale = float(numbers[group])
            weights[r, c] = code_at(weight_format, codes, padded, r, c) * scale
            steps[r, c] = abs(scale)
    return weights, steps


def read_expert(container: Path, layer: int, expert: int) -> list[tuple[bytes, bytes]]:
    """Codes and scales of gate, up and down."""
    raw = (container / f"experts/layer_{layer:03d}.sfi").read_bytes()
    assert raw[:8] == bytes.fromhex("5346494558500D0A")
    version, header_bytes, found_layer, num_experts = struct.unpack_from("<4I", raw, 8)
    assert (version, found_layer) == (1, layer)
    blob_bytes, _, file_bytes = struct.unpack_from("<3Q", raw, 40)
    assert file_bytes == len(raw) == header_bytes + num_experts * blob_bytes
    sections = struct.iter_unpack("<2Q", raw[64:160])
    blob = raw[header_bytes + expert * blob_bytes :][:blob_bytes]
    parts = [blob[offset : offset + nbytes] for offset, nbytes in sections]
    return list(zip(parts[::2], parts[1::2], strict=True))


def expected_projections(source: Path) -> list[NDArray[np.float64]]:
    gate_up = published(source, f"{PREFIX}layers.{LAYER}.mlp.experts.gate_up_proj")[EXPERT]
    down = published(source, f"{PREFIX}layers.{LAYER}.mlp.experts.down_proj")[EXPERT]
    return [gate_up[:40], gate_up[40:], down]


# Half a step, and more where the largest weight of a group lies beyond the codes.
STEPS = {
    "int8-v1": 0.50001,
    "int8-g64-v1": 0.6,
    "int6-g64-v1": 1.3,
    "int4-g64-v1": 1.8,
    "int4-g32-v1": 1.8,
}


@pytest.mark.parametrize("weight_format", sorted(STEPS))
def test_experts_decode_to_the_checkpoint_s_weights(
    source: Path, tmp_path: Path, weight_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    formats = Recipe("one", "", *3 * [weight_format], "float16")
    monkeypatch.setitem(RECIPES, "one", formats)
    container = prepare(source, tmp_path / "c", "one")
    parts = read_expert(container, LAYER, EXPERT)
    for (codes, scales), weights in zip(parts, expected_projections(source), strict=True):
        decoded, steps = decode(weight_format, codes, scales, *weights.shape)
        assert (np.abs(decoded - weights) <= STEPS[weight_format] * steps).all()
        assert np.abs(weights).max() > 6 * steps.max()


def test_bf16_experts_are_the_checkpoint_s_weights(source: Path, tmp_path: Path) -> None:
    container = prepare(source, tmp_path / "c", "bf16")
    parts = read_expert(container, LAYER, EXPERT)
    for (codes, scales), weights in zip(parts, expected_projections(source), strict=True):
        assert (widen(codes) == weights.reshape(-1)).all()
        assert scales == b""


@pytest.mark.parametrize("recipe", ["int8", "int4", "int4-small"])
def test_dense_tensors_decode_to_the_checkpoint_s_weights(
    source: Path, tmp_path: Path, recipe: str
) -> None:
    container = prepare(source, tmp_path / "c", recipe)
    manifest: dict[str, Any] = json.loads((container / "manifest.json").read_text())
    entries = dict(deserialize((container / "dense.safetensors").read_bytes()))
    derived = {
        "rotary.inv_freq",
        "layers.0.linear_attn.neg_exp_a",
        "layers.1.linear_attn.neg_exp_a",
    }
    for name, tensor in manifest["tensors"].items():
        if name in derived:
            continue
        weights = published(source, name if name == "lm_head.weight" else PREFIX + name)
        if tensor["format"] in STEPS:
            codes, scales = entries[name + ".codes"]["data"], entries[name + ".scales"]["data"]
            decoded, steps = decode(tensor["format"], codes, scales, *tensor["shape"])
            assert (np.abs(decoded - weights) <= STEPS[tensor["format"]] * steps).all(), name
        elif tensor["format"] == "bf16-v1":
            assert (widen(entries[name]["data"]) == weights.reshape(-1)).all(), name
        else:
            assert tensor["format"] == "float32"
            assert (np.frombuffer(entries[name]["data"], "<f4") == weights.reshape(-1)).all(), name
            assert entries[name]["shape"] == tensor["shape"]
