"""The head of a GGUF file is walked with every claim checked, and says what the gguf package's reader says."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf_bytes import LLAMA, TOKENIZER, Stored, gguf_bytes, llama_tensors, string

from sparseflow.checkpoint.gguf.block_types import OTHER_NAMES, READ_TYPES
from sparseflow.checkpoint.gguf.header import read_gguf_header
from sparseflow.errors import CheckpointError, SparseFlowError, UnsupportedError

METADATA = {**LLAMA, **TOKENIZER}


def write(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def test_metadata_and_tensors_are_those_that_the_gguf_package_reads(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="needs the gguf package: pip install gguf")
    path = write(tmp_path / "a.gguf", gguf_bytes(METADATA, llama_tensors()))
    header, reader = read_gguf_header(path), gguf.GGUFReader(path)
    for tensor in reader.tensors:
        ours = header.tensors[tensor.name]
        assert ours.type.name == tensor.tensor_type.name
        assert list(ours.shape) == tensor.shape.tolist()[::-1]
        assert (ours.offset, ours.nbytes) == (tensor.data_offset, tensor.n_bytes)
    for key, value in METADATA.items():
        if isinstance(value, list):
            assert header.read_array(key) == value
        else:
            assert header.metadata[key] == reader.fields[key].contents()
    assert len(header.tensors) == len(reader.tensors)


def test_block_sizes_and_names_are_those_of_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf", reason="needs the gguf package: pip install gguf")
    for number, kind in READ_TYPES.items():
        theirs = gguf.GGMLQuantizationType(number)
        assert kind.name == theirs.name
        assert (kind.block_values, kind.block_bytes) == gguf.GGML_QUANT_SIZES[theirs]
    for number, name in OTHER_NAMES.items():
        assert name == getattr(gguf.GGMLQuantizationType, name).name
        assert gguf.GGMLQuantizationType[name] == number


def with_tensor(**changes: Any) -> bytes:
    tensors = llama_tensors()
    tensors["token_embd.weight"] = replace(tensors["token_embd.weight"], **changes)
    return gguf_bytes(METADATA, tensors)


def array_of(kind: int, count: int) -> bytes:
    return struct.pack("<IIQ", 9, kind, count)


WRONG: dict[str, tuple[Callable[[], bytes], type[SparseFlowError], str]] = {
    "magic": (
        lambda: gguf_bytes(METADATA, llama_tensors(), magic=b"GGML"),
        CheckpointError,
        "not a GGUF file",
    ),
    "version_1": (
        lambda: gguf_bytes(METADATA, llama_tensors(), version=1),
        UnsupportedError,
        "version 1 of GGUF",
    ),
    "big_endian": (
        lambda: gguf_bytes(METADATA, llama_tensors(), version=3 << 24),
        UnsupportedError,
        "big-endian",
    ),
    "tensor_count": (
        lambda: gguf_bytes(METADATA, llama_tensors(), num_tensors=1 << 62),
        CheckpointError,
        "4611686018427387904 tensors",
    ),
    "one_tensor_more": (
        lambda: gguf_bytes({}, {}, num_tensors=1),
        CheckpointError,
        "name is empty",
    ),
    "key_count": (
        lambda: gguf_bytes(METADATA, {}, num_keys=1 << 62),
        CheckpointError,
        "metadata keys",
    ),
    "string_of_2_to_the_62": (
        lambda: gguf_bytes({"a": struct.pack("<IQ", 8, 1 << 62)}, {}),
        CheckpointError,
        "string of 4611686018427387904 bytes",
    ),
    "array_of_2_to_the_62_strings": (
        lambda: gguf_bytes({"a": array_of(8, 1 << 62)}, {}),
        CheckpointError,
        "the file is cut",
    ),
    "array_of_2_to_the_62_numbers": (
        lambda: gguf_bytes({"a": array_of(4, 1 << 62)}, {}),
        CheckpointError,
        "the file is cut",
    ),
    "nested_array": (
        lambda: gguf_bytes({"a": array_of(9, 1)}, {}),
        UnsupportedError,
        "array of arrays",
    ),
    "unknown_value_type": (
        lambda: gguf_bytes({"a": struct.pack("<I", 99)}, {}),
        CheckpointError,
        "unknown value type 99",
    ),
    "text_that_is_not_utf8": (
        lambda: gguf_bytes({"a": struct.pack("<I", 8) + string(b"\xff\xfe")}, {}),
        CheckpointError,
        "not UTF-8",
    ),
    "alignment": (
        lambda: gguf_bytes({**METADATA, "general.alignment": 24}, llama_tensors()),
        CheckpointError,
        "general.alignment is 24",
    ),
    "type_by_name": (lambda: with_tensor(type=16), UnsupportedError, "is IQ2_XXS, which is not"),
    "type_by_number": (lambda: with_tensor(type=999), UnsupportedError, "is of type 999"),
    "half_a_block": (lambda: with_tensor(type=12), CheckpointError, "no whole blocks of Q4_K"),
    "five_dimensions": (lambda: with_tensor(shape=(1,) * 5), CheckpointError, "5 dimensions"),
    "empty_dimension": (lambda: with_tensor(shape=(0, 32)), CheckpointError, "a size of 0"),
    "shape_of_2_to_the_62": (
        lambda: with_tensor(shape=(1 << 62, 32)),
        CheckpointError,
        "beyond all memory",
    ),
    "shape_beyond_the_file": (
        lambda: with_tensor(shape=(1 << 40, 1 << 40)),
        CheckpointError,
        "the file is cut",
    ),
    "offset_beyond_the_file": (lambda: with_tensor(offset=1 << 40), CheckpointError, "is cut"),
    "offset_that_is_not_aligned": (lambda: with_tensor(offset=8), CheckpointError, "not aligned"),
    "overlap": (lambda: with_tensor(offset=1024), CheckpointError, "overlaps"),
    "name_twice": (
        lambda: gguf_bytes(
            {}, {"a": Stored(0, (1,), b"1234"), "b": Stored(0, (1,), b"1234")}
        ).replace(string("b"), string("a")),
        CheckpointError,
        "described twice",
    ),
    "key_twice": (
        lambda: gguf_bytes({"a": 1, "b": 2}, {}).replace(string("b"), string("a")),
        CheckpointError,
        "'a' is there twice",
    ),
    "name_with_an_escape": (
        lambda: gguf_bytes({}, {"\x1b[2J": Stored(0, (1,), b"1234")}),
        CheckpointError,
        r"'\x1b[2J'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_claim_is_refused(name: str, tmp_path: Path) -> None:
    make, kind, phrase = WRONG[name]
    path = write(tmp_path / "a.gguf", make())
    with pytest.raises(kind) as caught:
        read_gguf_header(path)
    assert phrase in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_cut_file_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    raw = gguf_bytes(METADATA, llama_tensors())
    for end in range(0, len(raw) - 32, 97):
        with pytest.raises(CheckpointError):
            read_gguf_header(write(tmp_path / "a.gguf", raw[:end]))


def test_no_damaged_byte_gives_another_error_than_ours(tmp_path: Path) -> None:
    raw = gguf_bytes(METADATA, llama_tensors())
    head = raw.index(b"blk.0.ffn_down_exps.weight") + 64
    generator = random.Random(5)
    for _ in range(400):
        damaged = bytearray(raw)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(head)] = generator.randrange(256)
        path = write(tmp_path / "a.gguf", bytes(damaged))
        with contextlib.suppress(SparseFlowError):
            header = read_gguf_header(path)
            for key in header.arrays:
                header.read_array(key)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a\.gguf: no such file"):
        read_gguf_header(tmp_path / "a.gguf")
