"""The header of one safetensors file: names, types, shapes and byte ranges, with every claim
checked against the file.

The payload is not read. Headers come from strangers, so nothing is allocated on the strength of a
number in them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sparseflow.checkpoint.json_file import parse_json_object
from sparseflow.errors import CheckpointError, SparseFlowError, StorageError

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 1 << 16
MAX_ENTRY_BYTES = 4096
MAX_METADATA_BYTES = 1 << 20
MAX_RANK = 8

# One `"name": {...}` of the header and what follows it. Strings are matched whole, so braces in
# them do not count.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_ENTRY = re.compile(
    rb"\s*+(" + _STRING + rb")\s*+:\s*+(\{[^{}\"]*+(?:" + _STRING + rb"[^{}\"]*+)*+\})\s*+([,}])",
    re.DOTALL,
)
_END = re.compile(rb"\s*+\}")
_PADDING = re.compile(rb"\s*+")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of one file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """First byte, from the beginning of the file."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What one safetensors file says about itself, checked."""

    path: Path
    file_bytes: int
    sha256: str
    """Of the length field and the JSON."""
    tensors: dict[str, TensorEntry]


def read_header(path: Path, error: type[SparseFlowError] = CheckpointError) -> Header:
    """Reads and checks the header of the safetensors file at `path`.

    Raises `error` for what is wrong in the bytes, StorageError if they cannot be read.
    """
    try:
        with path.open("rb") as file:
            length, file_bytes = _read_length(file, path, error)
            raw = file.read(length)
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except OSError as problem:
        raise StorageError(
            f"{path}: cannot read the header: {problem.strerror}",
            path=str(path),
            offset=0,
            errno=problem.errno,
        ) from None
    if len(raw) != length:
        raise error(f"{path}: the file ends inside its header")
    tensors = _parse_entries(raw, path, error)
    _check_ranges(tensors, 8 + length, file_bytes, path, error)
    digest = hashlib.sha256(length.to_bytes(8, "little"))
    digest.update(raw)
    return Header(path, file_bytes, digest.hexdigest(), tensors)


def _read_length(file: BinaryIO, path: Path, error: type[SparseFlowError]) -> tuple[int, int]:
    """Bytes of the JSON, and of the file."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise error(f"{path}: not a regular file")
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > status.st_size - 8:
        raise error(
            f"{path}: header of {length} bytes in a file of {status.st_size}; the file is cut or is not safetensors"
        )
    if length > MAX_HEADER_BYTES:
        raise error(f"{path}: header of {length} bytes; at most {MAX_HEADER_BYTES} are read")
    return length, status.st_size


def _parse_entries(raw: bytes, path: Path, error: type[SparseFlowError]) -> dict[str, TensorEntry]:
    """Entry by entry and in place, so that memory stays near the header's own size whatever it holds."""
    tensors: dict[str, TensorEntry] = {}
    has_metadata = False
    if not raw.startswith(b"{"):
        raise error(f"{path}: the header is not a JSON object")
    position, separator = 1, b","
    empty = _END.match(raw, 1)
    if empty is not None:
        position, separator = empty.end(), b"}"
    while separator == b",":
        match = _ENTRY.match(raw, position)
        if match is None:
            raise error(f"{path}: the header is not valid at byte {8 + position}")
        name = _parse_name(match, path, error)
        if name in tensors or (name == "__metadata__" and has_metadata):
            raise error(f"{path}: {name!r} is described twice")
        if name == "__metadata__":
            has_metadata = True
            _check_metadata(match, path, error)
        else:
            tensors[name] = _parse_entry(name, match, 8 + len(raw), path, error)
            if len(tensors) > MAX_TENSORS:
                raise error(f"{path}: more than {MAX_TENSORS} tensors in one file")
        position, separator = match.end(), match[3]
    if _PADDING.fullmatch(raw, position) is None:
        raise error(f"{path}: the header goes on after its end at byte {8 + position}")
    return tensors


def _parse_name(match: re.Match[bytes], path: Path, error: type[SparseFlowError]) -> str:
    length = match.end(1) - match.start(1)
    if length > MAX_ENTRY_BYTES:
        raise error(f"{path}: a tensor name of {length} bytes")
    try:
        name: str = json.loads(match[1])
    except ValueError:
        raise error(f"{path}: a tensor name is not a JSON string") from None
    if not 1 <= len(name) <= 1024 or not name.isprintable():
        raise error(
            f"{path}: a tensor name is empty, longer than 1024 or not printable: {name[:40]!r}"
        )
    return name


def _check_metadata(match: re.Match[bytes], path: Path, error: type[SparseFlowError]) -> None:
    length = match.end(2) - match.start(2)
    if length > MAX_METADATA_BYTES:
        raise error(
            f"{path}: __metadata__ of {length} bytes; at most {MAX_METADATA_BYTES} are read"
        )
    metadata = parse_json_object(match[2], f"{path}: __metadata__", error)
    if not all(isinstance(value, str) for value in metadata.values()):
        raise error(f"{path}: __metadata__ may hold strings only")


def _parse_entry(
    name: str, match: re.Match[bytes], payload_offset: int, path: Path, error: type[SparseFlowError]
) -> TensorEntry:
    where = f"{path}: tensor {name!r}"
    length = match.end(2) - match.start(2)
    if length > MAX_ENTRY_BYTES:
        raise error(f"{where}: description of {length} bytes")
    entry = parse_json_object(match[2], where, error)
    if set(entry) != {"dtype", "shape", "data_offsets"}:
        raise error(f"{where}: dtype, shape and data_offsets were expected, not {sorted(entry)}")
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise error(f"{where}: unknown dtype {dtype!r}")
    shape = _counts(entry["shape"], f"{where}: shape", error)
    offsets = _counts(entry["data_offsets"], f"{where}: data_offsets", error)
    if len(shape) > MAX_RANK or len(offsets) != 2:
        raise error(
            f"{where}: shape {list(shape)}, data_offsets {list(offsets)}: wrong number of values"
        )
    nbytes = DTYPE_BYTES[dtype]
    for count in shape:
        nbytes *= count
    begin, end = offsets
    if end < begin or end - begin != nbytes:
        raise error(
            f"{where}: {dtype} {list(shape)} takes {nbytes} bytes, but data_offsets are {begin}"
            f" to {end}"
        )
    return TensorEntry(name, dtype, shape, payload_offset + begin, nbytes)


def _counts(value: Any, where: str, error: type[SparseFlowError]) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(
        type(item) is int and 0 <= item < 1 << 62 for item in value
    ):
        raise error(f"{where}: a list of counts was expected, not {str(value)[:80]}")
    return tuple(value)


def _check_ranges(
    tensors: dict[str, TensorEntry],
    payload_offset: int,
    file_bytes: int,
    path: Path,
    error: type[SparseFlowError],
) -> None:
    """Tensors must fill the payload exactly: no overlap, no gap, nothing beyond the end."""
    for entry in tensors.values():
        if entry.offset + entry.nbytes > file_bytes:
            raise error(
                f"{path}: tensor {entry.name!r} ends at byte {entry.offset + entry.nbytes}, the"
                " file at"
                f" {file_bytes}; the file is cut or its header is wrong"
            )
    end, previous = payload_offset, "the header"
    for entry in sorted(tensors.values(), key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.offset != end:
            verb = "overlaps" if entry.offset < end else "leaves a gap after"
            raise error(f"{path}: tensor {entry.name!r} {verb} {previous!r}")
        end, previous = entry.offset + entry.nbytes, entry.name
    if end != file_bytes:
        raise error(f"{path}: {file_bytes - end} bytes after the last tensor that no tensor claims")
