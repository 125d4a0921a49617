"""The byte ranges of an expert are those of the safetensors library, fused or not, across shards."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import deserialize

from make_synthetic_checkpoint import make, parse_options
from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.expert_slices import ExpertSlices
from sparseflow.cli.main import main
from sparseflow.errors import CheckpointError, ConfigError

EXPERTS, INNER, HIDDEN = 20, 40, 72


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 layers in 26 shards, gate_up and down of a layer far apart."""
    return make(
        parse_options(["--names", "qwen3.6", "--tiny", str(tmp_path_factory.mktemp("fused"))])
    )


@pytest.fixture(scope="module")
def unfused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tensor for each expert and projection, in shuffled shards."""
    words = ["--tiny", "--layers", "2", "--unfused", "--order", "adversarial", "--shards", "3"]
    return make(parse_options([*words, str(tmp_path_factory.mktemp("unfused"))]))


def library_bytes(checkpoint: Path, name: str) -> tuple[str, NDArray[np.uint8]]:
    """File name and bytes of a tensor as the safetensors library gives them, [rows..., bytes of a row]."""
    shard = json.loads((checkpoint / "model.safetensors.index.json").read_text())["weight_map"][
        name
    ]
    tensors = dict(deserialize((checkpoint / shard).read_bytes()))
    shape = tensors[name]["shape"]
    return shard, np.frombuffer(tensors[name]["data"], np.uint8).reshape(*shape[:-1], 2 * shape[-1])


def test_inspect_expert_agrees_with_the_safetensors_library(
    fused: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(fused), "--expert", "0:17", "--json"]) == 0
    gate, up, down = json.loads(capsys.readouterr().out)["slices"]
    prefix = "model.language_model.layers.0.mlp.experts."
    gate_up_shard, gate_up = library_bytes(fused, prefix + "gate_up_proj")
    down_shard, all_down = library_bytes(fused, prefix + "down_proj")
    assert gate_up_shard != down_shard
    expected = (
        (gate, gate_up_shard, gate_up[17, :INNER], [INNER, HIDDEN]),
        (up, gate_up_shard, gate_up[17, INNER:], [INNER, HIDDEN]),
        (down, down_shard, all_down[17], [HIDDEN, INNER]),
    )
    for part, shard, values, shape in expected:
        assert part["file"] == str(fused / shard)
        assert (part["dtype"], part["shape"], part["nbytes"]) == ("BF16", shape, values.nbytes)
        assert part["sha256"] == hashlib.sha256(values.tobytes()).hexdigest()
        raw = (fused / shard).read_bytes()[part["offset"] : part["offset"] + part["nbytes"]]
        assert raw == values.tobytes()


def test_unfused_experts_are_their_own_tensors(unfused: Path) -> None:
    with Checkpoint.open(unfused) as checkpoint:
        for part in ExpertSlices(checkpoint).get(1, 17):
            name = f"model.language_model.layers.1.mlp.experts.17.{part.projection}.weight"
            shard, values = library_bytes(unfused, name)
            assert (part.tensor, part.file.name, part.nbytes) == (name, shard, values.nbytes)
            buffer = bytearray(part.nbytes)
            checkpoint.read_into(part.file, part.offset, memoryview(buffer))
            assert buffer == values.tobytes()


def test_slices_of_a_layer_fill_its_fused_tensors_without_overlap(fused: Path) -> None:
    with Checkpoint.open(fused) as checkpoint:
        slices = ExpertSlices(checkpoint)
        ranges = sorted(
            (part.tensor, part.offset, part.nbytes)
            for expert in range(EXPERTS)
            for part in slices.get(7, expert)
        )
        for (tensor, offset, nbytes), following in pairwise(ranges):
            if following[0] == tensor:
                assert offset + nbytes == following[1]
        assert sum(nbytes for _, _, nbytes in ranges) == 3 * EXPERTS * INNER * HIDDEN * 2


@pytest.mark.parametrize("key", ["40:0", "0:20", "999:999"])
def test_expert_that_does_not_exist_is_refused(
    fused: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(fused), "--expert", key]) == ConfigError.exit_code
    assert f"no expert {key}" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["0", "0:17:1", "a:b", "-1:0", "0:-1", "0:9999999"])
def test_expert_that_is_not_a_pair_is_refused(
    fused: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(fused), f"--expert={key}"]) == ConfigError.exit_code
    assert "for example 0:17" in capsys.readouterr().err


def rename(checkpoint: Path, old: str, new: str) -> None:
    """Renames a tensor in its shard and in the index; names are of one length."""
    assert len(old) == len(new)
    for file in checkpoint.iterdir():
        file.write_bytes(file.read_bytes().replace(f'"{old}"'.encode(), f'"{new}"'.encode()))


def test_missing_expert_is_named(tmp_path: Path) -> None:
    path = make(parse_options(["--tiny", "--layers", "1", "--unfused", str(tmp_path)]))
    prefix = "model.language_model.layers.0.mlp.experts."
    rename(path, prefix + "17.up_proj.weight", prefix + "99.up_proj.weight")
    with (
        Checkpoint.open(path) as checkpoint,
        pytest.raises(CheckpointError, match=r"0\.mlp\.experts\.17\.up_proj"),
    ):
        ExpertSlices(checkpoint)


def test_fused_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = make(parse_options(["--tiny", "--layers", "1", "--shards", "1", str(tmp_path)]))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "moe_intermediate_size": 20}))
    with (
        Checkpoint.open(path) as checkpoint,
        pytest.raises(CheckpointError, match=r"gate_up_proj.*config.json asks for"),
    ):
        ExpertSlices(checkpoint)
