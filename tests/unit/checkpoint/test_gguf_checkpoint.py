"""A GGUF file has the configuration, the classes and the shapes of the checkpoint that it was made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

gguf = pytest.importorskip("gguf", reason="needs the gguf package: pip install gguf")

from gguf_bytes import (  # noqa: E402
    LLAMA,
    TOKENIZER,
    Stored,
    float32,
    gguf_bytes,
    llama_tensors,
)

from make_synthetic_checkpoint import make, parse_options  # noqa: E402
from peers.gguf_writer import TYPES, write_gguf  # noqa: E402
from sparseflow.checkpoint.checkpoint import Checkpoint  # noqa: E402
from sparseflow.checkpoint.expert_slices import ExpertSlices  # noqa: E402
from sparseflow.checkpoint.gguf.checkpoint import GgufCheckpoint  # noqa: E402
from sparseflow.checkpoint.gguf.config import shortest_decimal  # noqa: E402
from sparseflow.checkpoint.open import open_checkpoint  # noqa: E402
from sparseflow.checkpoint.summary import not_carried, summarize_checkpoint  # noqa: E402
from sparseflow.errors import (  # noqa: E402
    CheckpointError,
    SparseFlowError,
    UnsupportedError,
)

METADATA = {**LLAMA, **TOKENIZER}


def write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Stored]) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(parse_options(["--tiny", "--chain", str(tmp_path_factory.mktemp("c") / "c")]))


@pytest.fixture(scope="module")
def file(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Checkpoint.open(checkpoint) as opened:
        return write_gguf(opened, tmp_path_factory.mktemp("g") / "a.gguf", TYPES["Q4_0"])


def test_configuration_is_the_checkpoints(checkpoint: Path, file: Path) -> None:
    with Checkpoint.open(checkpoint) as source, open_checkpoint(file) as opened:
        differing = {
            name: (value, opened.config.get(name))
            for name, value in source.config.items()
            if opened.config.get(name) != value
        }
        assert set(differing) <= {"dtype"}
        assert opened.dimensions == source.dimensions


def test_every_tensor_is_claimed_and_shaped_as_in_the_checkpoint(
    checkpoint: Path, file: Path
) -> None:
    with Checkpoint.open(checkpoint) as source, GgufCheckpoint.open(file) as opened:
        assert opened.unknown == []
        assert opened.quantized_types[0] == "Q4_0"
        for tensor in source.tensors.values():
            assert tensor.identity is not None
            canonical = tensor.identity.canonical.replace("A_log", "neg_exp_a")
            assert opened.get(canonical, tensor.shape).shape == tensor.shape
        ours, theirs = ExpertSlices(opened), ExpertSlices(source)
        assert [part.shape for part in ours.get(0, 1)] == [part.shape for part in theirs.get(0, 1)]


def test_summary_counts_what_is_stored(file: Path) -> None:
    reader = gguf.GGUFReader(file)
    with open_checkpoint(file) as opened:
        lines = summarize_checkpoint(opened)
    assert sum(line.num_tensors for line in lines) == len(reader.tensors)
    assert sum(line.nbytes for line in lines) == sum(int(t.n_bytes) for t in reader.tensors)
    formats = {line.tensor_class: line.formats for line in lines}
    assert formats["routed experts"] == ("Q4_0",)
    assert formats["norms"] == ("F32",)


@pytest.mark.parametrize(
    ("value", "short"), [(9.999999974752427e-07, 1e-06), (1e7, 1e7), (0.949999988079071, 0.95)]
)
def test_a_float32_is_the_shortest_decimal(value: float, short: float) -> None:
    assert shortest_decimal(value) == short


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in METADATA.items() if name != key}


WRONG: dict[str, tuple[dict[str, Any], type[SparseFlowError], str]] = {
    "architecture": (
        {**METADATA, "general.architecture": "gemma"},
        UnsupportedError,
        "unknown architecture 'gemma'; known: llama, qwen35moe",
    ),
    "dense": (without("llama.expert_count"), UnsupportedError, "without experts"),
    "missing": (without("llama.context_length"), CheckpointError, "llama.context_length is None"),
    "zero": ({**METADATA, "llama.block_count": 0}, CheckpointError, "llama.block_count is 0"),
    "text": ({**METADATA, "llama.block_count": "1"}, CheckpointError, "llama.block_count is 1"),
    "heads": (
        {
            **METADATA,
            "llama.attention.key_length": 1,
            "llama.attention.head_count": 32,
            "llama.attention.head_count_kv": 16,
        },
        CheckpointError,
        "no whole pairs of 32 heads",
    ),
    "rope": (
        {**METADATA, "llama.rope.scaling.type": "yarn"},
        UnsupportedError,
        "llama.rope.scaling.type is 'yarn'",
    ),
    "epsilon": (
        without("llama.attention.layer_norm_rms_epsilon"),
        CheckpointError,
        "layer_norm_rms_epsilon is None",
    ),
    "shape": (
        {**METADATA, "llama.expert_count": 3},
        CheckpointError,
        "the metadata ask for [3, 32]",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_metadata_that_do_not_fit_are_refused(name: str, tmp_path: Path) -> None:
    metadata, kind, phrase = WRONG[name]
    path = write(tmp_path / "a.gguf", metadata, llama_tensors())
    with pytest.raises(kind) as caught:
        open_checkpoint(path)
    assert phrase in str(caught.value)
    assert str(path) in str(caught.value)


def test_what_nothing_claims_is_unknown(tmp_path: Path) -> None:
    extra = {name: float32(np.ones(4, np.float32)) for name in ("rope_freqs.weight", "blk.1.ssm_a")}
    path = write(tmp_path / "a.gguf", METADATA, {**llama_tensors(), **extra})
    with open_checkpoint(path) as opened:
        assert [tensor.name for tensor in opened.unknown] == list(extra)


def test_experts_without_their_other_half_are_refused(tmp_path: Path) -> None:
    tensors = llama_tensors()
    del tensors["blk.0.ffn_up_exps.weight"]
    with pytest.raises(CheckpointError, match=r"ffn_up_exps\.weight' is missing"):
        open_checkpoint(write(tmp_path / "a.gguf", METADATA, tensors))


def test_blocks_that_predict_further_tokens_are_not_carried(tmp_path: Path) -> None:
    one = float32(np.ones(32, np.float32))
    further = {"blk.1.nextn.enorm.weight": one, "blk.1.attn_norm.weight": one}
    metadata = {**METADATA, "general.architecture": "qwen35moe"}
    metadata |= {
        key.replace("llama.", "qwen35moe."): value
        for key, value in LLAMA.items()
        if key.startswith("llama.")
    }
    sizes = {
        "block_count": 2,
        "attention.key_length": 8,
        "expert_feed_forward_length": 32,
        "expert_shared_feed_forward_length": 32,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 8,
        "ssm.group_count": 2,
        "ssm.time_step_rank": 4,
        "ssm.inner_size": 32,
    }
    metadata |= {f"qwen35moe.{key}": value for key, value in sizes.items()}
    embedding = {"token_embd.weight": llama_tensors()["token_embd.weight"]}
    with open_checkpoint(write(tmp_path / "a.gguf", metadata, {**embedding, **further})) as opened:
        assert opened.config["num_hidden_layers"] == 1
        assert not_carried(opened) == {"mtp": list(further)}
        assert opened.unknown == []


def split(directory: Path, *, count: int = 2, swap: bool = False) -> list[Path]:
    tensors = list(llama_tensors().items())
    paths = [directory / f"m-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    for i, path in enumerate(paths):
        place = {"split.no": 1 - i if swap else i, "split.count": count}
        total = {"split.tensors.count": len(tensors)}
        metadata = {**(METADATA if i == 0 else {}), **place, **total}
        write(path, metadata, dict(tensors[i::count]))
    return paths


def test_split_files_are_one_model_whichever_is_named(tmp_path: Path) -> None:
    with open_checkpoint(write(tmp_path / "whole.gguf", METADATA, llama_tensors())) as whole:
        for path in split(tmp_path):
            with open_checkpoint(path) as opened:
                assert opened.tensors.keys() == whole.tensors.keys()
                assert len(opened.headers) == 2
                for name, tensor in whole.tensors.items():
                    found, expected = bytearray(tensor.nbytes), bytearray(tensor.nbytes)
                    other = opened.tensors[name]
                    opened.read_into(other.file, other.offset, memoryview(found))
                    whole.read_into(tensor.file, tensor.offset, memoryview(expected))
                    assert found == expected, name


def test_split_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    first, second = split(tmp_path)
    second.rename(tmp_path / "x.gguf")
    with pytest.raises(CheckpointError, match="no such file"):
        open_checkpoint(first)
    with pytest.raises(CheckpointError, match="is one of 2 files; all must be named"):
        open_checkpoint(tmp_path / "x.gguf")
    first, second = split(tmp_path, swap=True)
    with pytest.raises(CheckpointError, match="are files swapped"):
        open_checkpoint(first)


def test_a_directory_of_gguf_files_is_refused_with_the_way_out(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", METADATA, llama_tensors())
    with pytest.raises(CheckpointError, match=r"holds GGUF files; give the file itself: .*a\.gguf"):
        open_checkpoint(tmp_path)


def test_a_decay_that_is_not_below_zero_is_refused(file: Path, tmp_path: Path) -> None:
    with GgufCheckpoint.open(file) as opened:
        stored = opened.stored["blk.0.ssm_a"]
    raw = bytearray(file.read_bytes())
    raw[stored.offset : stored.offset + 4] = np.float32(0.5).tobytes()
    (tmp_path / "a.gguf").write_bytes(raw)
    with GgufCheckpoint.open(tmp_path / "a.gguf") as opened:
        tensor = opened.tensors["blk.0.ssm_a"]
        with pytest.raises(
            CheckpointError, match=r"'blk\.0\.ssm_a' has a value that is not below 0"
        ):
            opened.read_into(tensor.file, tensor.offset, memoryview(bytearray(tensor.nbytes)))
