"""What a safetensors header may say, and that what it may not say is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from sparseflow.checkpoint.header import MAX_HEADER_BYTES, read_header
from sparseflow.errors import CheckpointError, ContainerError, StorageError


def write(path: Path, header: Any, payload: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + payload)
    return path


def entry(dtype: str = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_files_of_the_safetensors_library_are_read(tmp_path: Path) -> None:
    arrays = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        'quote"{brace}': np.arange(3, dtype=np.int8),
        "empty": np.empty((0, 5), np.float16),
        "scalar": np.array(7, np.int64),
    }
    save_file(arrays, tmp_path / "a.safetensors", {"note": 'a "}" in a string, \\ and ☃'})
    header = read_header(tmp_path / "a.safetensors")
    raw = (tmp_path / "a.safetensors").read_bytes()
    assert header.tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        found = header.tensors[name]
        assert found.shape == array.shape
        assert raw[found.offset : found.offset + found.nbytes] == array.tobytes()


def test_a_file_without_tensors_is_read(tmp_path: Path) -> None:
    assert read_header(write(tmp_path / "a", b"{}")).tensors == {}
    assert read_header(write(tmp_path / "a", {"__metadata__": {}})).tensors == {}


HOSTILE = {
    "not_an_object": (b"[1,2]", b""),
    "nothing": (b"", b""),
    "unterminated": (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}', b"1234"),
    "text_after_the_end": (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}x', b"1234"),
    "trailing_comma": (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},}', b"1234"),
    "same_name_twice": (
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}',
        b"12345678",
    ),
    "same_name_twice_by_an_escape": (
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"\\u0061":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}',
        b"12345678",
    ),
    "key_twice_in_an_entry": (
        b'{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
        b"1234",
    ),
    "nested_object": ({"a": {**entry(), "more": {"deep": 1}}}, b"1234"),
    "extra_key": ({"a": {**entry(), "more": 1}}, b"1234"),
    "missing_key": ({"a": {"dtype": "U8", "shape": [4]}}, b"1234"),
    "unknown_dtype": ({"a": entry("U9")}, b"1234"),
    "dtype_that_is_a_list": ({"a": {**entry(), "dtype": ["U8"]}}, b"1234"),
    "dtype_of_another_size": ({"a": entry("F32")}, b"1234"),
    "negative_dimension": ({"a": entry(shape=(-4,))}, b"1234"),
    "negative_dimensions_of_a_positive_product": ({"a": entry(shape=(-2, -2))}, b"1234"),
    "fractional_dimension": ({"a": entry(shape=(4.0,))}, b"1234"),
    "boolean_dimension": ({"a": entry(shape=(True, 4))}, b"1234"),
    "shape_of_2_to_the_80": ({"a": entry(shape=(1 << 40, 1 << 40))}, b"1234"),
    "shape_that_wraps_to_4": ({"a": entry(shape=(1 << 61, 8, 4))}, b"1234"),
    "rank_nine": ({"a": entry(shape=(1,) * 8 + (4,))}, b"1234"),
    "shape_that_is_a_number": ({"a": {**entry(), "shape": 4}}, b"1234"),
    "one_offset": ({"a": entry(offsets=(4,))}, b"1234"),
    "negative_offsets": ({"a": entry(offsets=(-4, 0))}, b"1234"),
    "reversed_offsets": ({"a": entry(offsets=(4, 0))}, b"1234"),
    "offsets_beyond_the_file": ({"a": entry(offsets=(1 << 40, (1 << 40) + 4))}, b"1234"),
    "overlap": ({"a": entry(), "b": entry(offsets=(2, 6))}, b"123456"),
    "same_range_twice": ({"a": entry(), "b": entry()}, b"1234"),
    "gap": ({"a": entry(), "b": entry(offsets=(5, 9))}, b"123456789"),
    "bytes_that_nobody_claims": ({"a": entry()}, b"12345"),
    "cut_payload": ({"a": entry()}, b"123"),
    "metadata_that_is_no_text": ({"__metadata__": {"a": 1}, "a": entry()}, b"1234"),
    "not_a_number": (b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,4]}}', b"1234"),
    "deep_nesting": (b'{"a":' + b"[" * 100_000 + b"}", b""),
    "deep_nesting_in_an_entry": (b'{"a":{"shape":' + b"[" * 3000 + b"]" * 3000 + b"}}", b""),
    "many_values_in_an_entry": (b'{"a":{"shape":[' + b"1," * 100_000 + b"1]}}", b""),
    "name_with_a_control_character": ({"a\n": entry()}, b"1234"),
    "name_without_characters": ({"": entry()}, b"1234"),
    "not_utf_8": (b'{"\xff":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', b"1234"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_header_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a.safetensors", *HOSTILE[name])
    with pytest.raises(CheckpointError, match=r"a\.safetensors"):
        read_header(path)


@pytest.mark.parametrize("length", [1 << 62, (1 << 64) - 1, 100])
def test_header_longer_than_its_file_is_refused_unread(tmp_path: Path, length: int) -> None:
    (tmp_path / "a").write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match=f"header of {length} bytes"):
        read_header(tmp_path / "a")


def test_header_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(MAX_HEADER_BYTES + 100)
    with pytest.raises(CheckpointError, match="at most"):
        read_header(tmp_path / "a")


def test_the_error_class_is_the_caller_s(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="no such file"):
        read_header(tmp_path / "absent", ContainerError)
    with pytest.raises(ContainerError, match="cut"):
        read_header(write(tmp_path / "a", {"a": entry()}, b"123"), ContainerError)


def test_a_directory_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read"):
        read_header(tmp_path)
