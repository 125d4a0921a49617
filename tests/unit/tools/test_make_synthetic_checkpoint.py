"""The synthetic checkpoints are what they claim: the published names and shapes, far-apart parts, seeded values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from make_synthetic_checkpoint import make, parse_options
from synthetic.layout import Tensor, mtp_tensors, text_config, text_tensors, visual_tensors
from synthetic.noise import value_blocks


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_counts_are_the_published_model_s() -> None:
    config = text_config(40, 248_320)
    assert len(text_tensors(config, is_fused=True)) == 30 * 18 + 10 * 15 + 3
    assert len(visual_tensors(config, is_tiny=False)) == 27 * 12 + 9
    assert len(mtp_tensors(config)) == 15 + 4


def test_the_same_seed_gives_the_same_bytes_and_another_others(tmp_path: Path) -> None:
    words = ["--tiny", "--layers", "1"]
    first = contents(make(parse_options([*words, str(tmp_path / "a")])))
    assert contents(make(parse_options([*words, str(tmp_path / "b")]))) == first
    other = contents(make(parse_options([*words, "--seed", "1", str(tmp_path / "c")])))
    assert other.keys() == first.keys()
    assert all(other[name] != first[name] for name in first if name.endswith(".safetensors"))


def test_adversarial_order_puts_the_parts_of_every_layer_far_apart(tmp_path: Path) -> None:
    path = make(parse_options(["--names", "qwen3.6", "--tiny", str(tmp_path)]))
    shards = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    for layer in range(40):
        prefix = f"model.language_model.layers.{layer}.mlp.experts."
        gate_up, down = (int(shards[prefix + name][6:11]) for name in ("gate_up_proj", "down_proj"))
        assert abs(gate_up - down) >= 8


def test_headers_only_takes_no_room(tmp_path: Path) -> None:
    path = make(parse_options(["--names", "qwen3.6", "--headers-only", str(tmp_path)]))
    files = [file.stat() for file in path.glob("*.safetensors")]
    assert sum(file.st_size for file in files) > 66 << 30
    assert sum(file.st_blocks for file in files) * 512 < 4 << 20


def test_values_have_sensible_sizes() -> None:
    def values(
        name: str, shape: tuple[int, ...]
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        bits = np.concatenate(list(value_blocks(Tensor(name, shape), 0)))
        return (bits.astype(np.uint32) << 16).view(np.float32)

    matrix = values("model.language_model.layers.0.linear_attn.in_proj_z.weight", (256, 1024))
    assert matrix.std() == pytest.approx(1024**-0.5, rel=0.02)
    a_log = values("model.language_model.layers.0.linear_attn.A_log", (4096,))
    dt_bias = values("model.language_model.layers.0.linear_attn.dt_bias", (4096,))
    decay = np.exp(-np.exp(a_log) * np.log1p(np.exp(dt_bias)))
    assert np.quantile(decay, [0.05, 0.95]) == pytest.approx([0.8, 0.99], abs=0.03)


@pytest.mark.parametrize(
    "words", [[], ["--tiny", "--true-geometry"], ["--names", "qwen3.6", "--true-geometry"]]
)
def test_options_that_say_too_little_or_would_write_too_much_are_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options([*words, str(tmp_path)])
    assert caught.value.code == 2
    assert "--tiny" in capsys.readouterr().err
