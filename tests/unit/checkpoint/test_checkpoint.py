"""A checkpoint is opened without its payload and read by byte range; a file cut meanwhile is noticed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from make_synthetic_checkpoint import make, parse_options
from sparseflow.checkpoint.checkpoint import Checkpoint, pread_full
from sparseflow.checkpoint.header import read_header
from sparseflow.errors import CheckpointError, StorageError


@pytest.fixture(scope="module")
def checkpoint_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer, one file."""
    return make(
        parse_options(
            ["--tiny", "--layers", "1", "--shards", "1", str(tmp_path_factory.mktemp("c"))]
        )
    )


def test_opening_reads_no_payload(tmp_path: Path) -> None:
    # 67 GiB of holes open in an instant; the sizes are the published model's.
    path = make(parse_options(["--names", "qwen3.6", "--headers-only", str(tmp_path)]))
    with Checkpoint.open(path) as checkpoint:
        assert sum(tensor.nbytes for tensor in checkpoint.tensors.values()) > 66 << 30


def test_ranges_are_read_from_their_file(checkpoint_path: Path) -> None:
    raw = (checkpoint_path / "model.safetensors").read_bytes()
    with Checkpoint.open(checkpoint_path) as checkpoint:
        for tensor in checkpoint.tensors.values():
            buffer = bytearray(tensor.nbytes)
            checkpoint.read_into(tensor.file, tensor.offset, memoryview(buffer))
            assert buffer == raw[tensor.offset : tensor.offset + tensor.nbytes]


def test_missing_tensor_and_wrong_shape_are_named(checkpoint_path: Path) -> None:
    with Checkpoint.open(checkpoint_path) as checkpoint:
        with pytest.raises(CheckpointError, match=r"'layers\.1\.mlp\.gate\.weight' is missing"):
            checkpoint.get("layers.1.mlp.gate.weight", (20, 72))
        with pytest.raises(
            CheckpointError, match=r"shape \[20, 72\]; config.json asks for \[8, 72\]"
        ):
            checkpoint.get("layers.0.mlp.gate.weight", (8, 72))


def test_file_cut_after_opening_is_noticed(checkpoint_path: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint_path / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(
        (checkpoint_path / "model.safetensors").read_bytes()
    )
    with Checkpoint.open(tmp_path) as checkpoint:
        last = max(checkpoint.tensors.values(), key=lambda tensor: tensor.offset)
        os.truncate(tmp_path / "model.safetensors", last.offset + 1)
        with pytest.raises(CheckpointError, match="cut after it was opened"):
            checkpoint.read_into(last.file, last.offset, memoryview(bytearray(last.nbytes)))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_descriptors_are_given_back(checkpoint_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with Checkpoint.open(checkpoint_path) as checkpoint:
            tensor = checkpoint.get("norm.weight", (72,))
            checkpoint.read_into(tensor.file, tensor.offset, memoryview(bytearray(4)))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(bytes(range(200)))
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: real(fd, [views[0][:7]], offset))
    with (tmp_path / "a").open("rb") as file:
        buffer = bytearray(150)
        assert pread_full(file.fileno(), memoryview(buffer), 40, tmp_path / "a") == 150
        assert buffer == bytes(range(40, 190))
        assert pread_full(file.fileno(), memoryview(buffer), 190, tmp_path / "a") == 10


def test_failed_read_carries_path_offset_and_errno(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    descriptor = os.open(tmp_path / "a", os.O_WRONLY)
    try:
        with pytest.raises(StorageError) as caught:
            pread_full(descriptor, memoryview(bytearray(1)), 5, tmp_path / "a")
    finally:
        os.close(descriptor)
    assert (caught.value.path, caught.value.offset, caught.value.errno) == (
        str(tmp_path / "a"),
        5,
        errno.EBADF,
    )


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_mutated_header_is_refused_or_stays_inside_its_file(
    checkpoint_path: Path, tmp_path: Path, data: st.DataObject
) -> None:
    raw = bytearray((checkpoint_path / "model.safetensors").read_bytes())
    length = int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 7 + length))
        piece = data.draw(
            st.sampled_from(
                [b"0", b"9", b"-", b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\xff", b" "]
            )
        )
        raw[place : place + data.draw(st.integers(0, 2))] = piece
    path = tmp_path / "mutated"
    path.write_bytes(raw)
    try:
        header = read_header(path)
    except CheckpointError:
        return
    for entry in header.tensors.values():
        assert 0 <= entry.offset <= entry.offset + entry.nbytes <= len(raw)
