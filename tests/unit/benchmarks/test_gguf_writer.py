"""GGUF files hold the checkpoint's weights as llama.cpp's converter would write them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf", reason="needs the gguf package: pip install gguf")

import gguf

from make_synthetic_checkpoint import make, parse_options
from peers.gguf_layout import value_head_order
from peers.gguf_writer import TYPES, write_gguf
from sparseflow.checkpoint.checkpoint import Checkpoint

TINY = ["--tiny", "--chain"]
CONVERTER_SHA256 = "a1cdb7ae56315a4fe8391f0e12f8f898b873b1131c3fbd3dc1808cd7b691bd78"
"""Over the tensors of `--tiny --chain` as llama.cpp's converter wrote them (peers/check_converter.py)."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(parse_options([*TINY, str(tmp_path_factory.mktemp("gguf") / "checkpoint")]))


def digest(path: Path) -> str:
    """Of name, type, shape and bytes of every tensor, by name."""
    total = hashlib.sha256()
    for tensor in sorted(gguf.GGUFReader(path).tensors, key=lambda tensor: tensor.name):
        shape = tensor.shape.tolist()
        total.update(f"{tensor.name} {tensor.tensor_type.name} {shape}".encode())
        total.update(tensor.data.tobytes())
    return total.hexdigest()


def test_tensors_are_those_of_the_converter(checkpoint: Path, tmp_path: Path) -> None:
    with Checkpoint.open(checkpoint) as opened:
        path = write_gguf(opened, tmp_path / "a.gguf", TYPES["Q8_0"])
    assert digest(path) == CONVERTER_SHA256


@pytest.mark.parametrize("name", sorted(TYPES))
def test_a_file_made_directly_is_that_of_the_written_checkpoint(
    checkpoint: Path, tmp_path: Path, name: str
) -> None:
    with Checkpoint.open(checkpoint) as opened:
        written = write_gguf(opened, tmp_path / "written.gguf", TYPES[name])
    options = parse_options([*TINY, "--gguf", str(tmp_path / "direct.gguf"), "--type", name])
    assert make(options).read_bytes() == written.read_bytes()
    chain = (tmp_path / "direct.chain.json").read_bytes()
    assert chain == (checkpoint / "chain.json").read_bytes()


def test_experts_alone_get_the_named_type(checkpoint: Path, tmp_path: Path) -> None:
    with Checkpoint.open(checkpoint) as opened:
        path = write_gguf(opened, tmp_path / "a.gguf", TYPES["Q4_0"])
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    quantized = {name for name, kind in types.items() if kind == "Q4_0"}
    assert quantized == {name for name in types if "_exps." in name}
    assert types["output.weight"] == types["blk.0.ffn_up_shexp.weight"] == "Q8_0"
    assert types["blk.0.ffn_gate_inp.weight"] == types["blk.0.ssm_a"] == "F32"


def test_nothing_half_written_is_left_under_the_name(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with Checkpoint.open(checkpoint) as opened, pytest.raises(KeyboardInterrupt):
        write_gguf(opened, path, TYPES["Q8_0"], progress=interrupt)
    assert not path.exists()


def test_value_heads_go_round_the_key_heads() -> None:
    config = {"linear_num_key_heads": 2, "linear_num_value_heads": 6}
    assert np.array_equal(value_head_order(config), [0, 3, 1, 4, 2, 5])
