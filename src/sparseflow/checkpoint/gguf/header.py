"""The head of one GGUF file: metadata and where each tensor lies, with every claim checked against the file.

The payload is not read. Files come from strangers, so nothing is allocated on the strength of a number in them; long
arrays (a vocabulary) are walked, and read only when they are asked for.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sparseflow.checkpoint.gguf.block_types import OTHER_NAMES, READ_TYPES, BlockType
from sparseflow.checkpoint.gguf.cursor import MAX_HEADER_BYTES, ArrayPlace, Cursor
from sparseflow.errors import CheckpointError, StorageError, UnsupportedError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 1 << 12
MAX_TENSORS = 1 << 16
MAX_RANK = 4
MAX_DIMENSION = 1 << 40
MAX_NAME_BYTES = 1024
DEFAULT_ALIGNMENT, MAX_ALIGNMENT = 32, 1 << 16
_HASH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of one file, as it is stored."""

    name: str
    file: Path
    type: BlockType
    shape: tuple[int, ...]
    """Slowest dimension first, as NumPy has it; files write it the other way round."""
    offset: int
    """First byte, from the beginning of the file."""
    nbytes: int

    @property
    def cols(self) -> int:
        """Values of a row, which are contiguous."""
        return self.shape[-1]

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return self.cols // self.type.block_values * self.type.block_bytes


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What one GGUF file says about itself, checked."""

    path: Path
    file_bytes: int
    sha256: str
    """Of everything before the payload."""
    metadata: dict[str, Any]
    """Numbers, strings and short arrays of numbers, by key."""
    arrays: dict[str, ArrayPlace]
    """Other arrays, by key; `read_array` reads them."""
    tensors: dict[str, StoredTensor]

    def read_array(self, key: str) -> list[Any]:
        """The values of an array. Raises CheckpointError if it is not there or not text, StorageError."""
        if isinstance(self.metadata.get(key), list):
            return list(self.metadata[key])
        place = self.arrays.get(key)
        if place is None:
            raise CheckpointError(f"{self.path}: no array {key!r} in the metadata")
        with _open(self.path) as (file, file_bytes):
            file.seek(place.offset)
            cursor = Cursor(file, self.path, file_bytes, place.offset)
            return cursor.values(place.kind, place.count, f"metadata key {key!r}")


def read_gguf_header(path: Path) -> GgufHeader:
    """Reads and checks everything before the payload of the GGUF file at `path`.

    Raises CheckpointError for what is wrong in the bytes, UnsupportedError for a version or a tensor type that is not
    read, StorageError if they cannot be read.
    """
    with _open(path) as (file, file_bytes):
        cursor = Cursor(file, path, file_bytes)
        _check_version(cursor, path)
        num_tensors, num_keys = cursor.number("Q", "counts"), cursor.number("Q", "counts")
        _check_count("tensors", num_tensors, MAX_TENSORS, path)
        _check_count("metadata keys", num_keys, MAX_KEYS, path)
        metadata, arrays = _read_metadata(cursor, num_keys, path)
        alignment = _alignment(metadata, path)
        infos = [_read_info(cursor, path) for _ in range(num_tensors)]
        end = cursor.position
        begin = -(-end // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, kind, shape, offset in infos:
            if name in tensors:
                raise CheckpointError(f"{path}: tensor {name!r} is described twice")
            tensors[name] = _place(path, name, kind, shape, offset, begin, alignment, file_bytes)
        _check_overlap(tensors, path)
        return GgufHeader(path, file_bytes, _sha256(file, end), metadata, arrays, tensors)


@contextmanager
def _open(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """The file and its size in bytes; errors of the operating system become StorageError."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path}: not a regular file")
            yield file, status.st_size
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except OSError as problem:
        raise StorageError(
            f"{path}: cannot read the header: {problem.strerror}",
            path=str(path),
            offset=0,
            errno=problem.errno,
        ) from None


def _check_version(cursor: Cursor, path: Path) -> None:
    if cursor.take(4, "magic") != MAGIC:
        raise CheckpointError(f"{path}: does not begin with {MAGIC.decode()}; not a GGUF file")
    version = cursor.number("I", "version")
    if version not in VERSIONS:
        what = "a big-endian file" if version and not version & 0xFFFF else f"version {version}"
        known = " and ".join(map(str, VERSIONS))
        raise UnsupportedError(f"{path}: {what} of GGUF; versions {known}, little-endian, are read")


def _check_count(what: str, count: int, most: int, path: Path) -> None:
    if count > most:
        raise CheckpointError(f"{path}: {count} {what}; at most {most} are read")


def _read_metadata(
    cursor: Cursor, num_keys: int, path: Path
) -> tuple[dict[str, Any], dict[str, ArrayPlace]]:
    metadata: dict[str, Any] = {}
    arrays: dict[str, ArrayPlace] = {}
    for _ in range(num_keys):
        key = cursor.string("a metadata key", MAX_NAME_BYTES)
        what = f"metadata key {key!r}"
        if key in metadata or key in arrays:
            raise CheckpointError(f"{path}: {what} is there twice")
        value = cursor.value(cursor.number("I", what), what)
        if isinstance(value, ArrayPlace):
            arrays[key] = value
        else:
            metadata[key] = value
    return metadata, arrays


def _alignment(metadata: dict[str, Any], path: Path) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if (
        type(alignment) is not int
        or not 8 <= alignment <= MAX_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        raise CheckpointError(
            f"{path}: general.alignment is {str(alignment)[:40]}; a power of two from 8 to"
            f" {MAX_ALIGNMENT} was expected"
        )
    return int(alignment)


def _read_info(cursor: Cursor, path: Path) -> tuple[str, BlockType, tuple[int, ...], int]:
    """Name, type, shape and offset within the payload of one tensor."""
    name = cursor.string("a tensor name", MAX_NAME_BYTES)
    if not name or not name.isprintable():
        raise CheckpointError(f"{path}: a tensor name is empty or not printable: {name[:40]!r}")
    what = f"tensor {name!r}"
    where = f"{path}: {what}"
    rank = cursor.number("I", what)
    if not 1 <= rank <= MAX_RANK:
        raise CheckpointError(f"{where}: {rank} dimensions; 1 to {MAX_RANK} were expected")
    shape = tuple(cursor.number("Q", what) for _ in range(rank))[::-1]
    if not all(1 <= count <= MAX_DIMENSION for count in shape):
        raise CheckpointError(f"{where}: shape {list(shape)} has a size of 0 or beyond all memory")
    number = cursor.number("I", what)
    kind = READ_TYPES.get(number)
    if kind is None:
        known = ", ".join(kind.name for kind in READ_TYPES.values())
        label = OTHER_NAMES.get(number, f"of type {number}")
        raise UnsupportedError(
            f"{where} is {label}, which is not read; read are {known}: choose another file"
        )
    return name, kind, shape, cursor.number("Q", what)


def _place(
    path: Path,
    name: str,
    kind: BlockType,
    shape: tuple[int, ...],
    offset: int,
    begin: int,
    alignment: int,
    file_bytes: int,
) -> StoredTensor:
    where = f"{path}: tensor {name!r}"
    if shape[-1] % kind.block_values:
        raise CheckpointError(
            f"{where}: rows of {shape[-1]} values are no whole blocks of {kind.name}"
            f" ({kind.block_values} values)"
        )
    if offset % alignment:
        raise CheckpointError(f"{where}: offset {offset} is not aligned to {alignment}")
    nbytes = kind.block_bytes
    for count in (*shape[:-1], shape[-1] // kind.block_values):
        nbytes *= count
    if begin + offset + nbytes > file_bytes:
        raise CheckpointError(
            f"{where} ends at byte {begin + offset + nbytes}, the file at {file_bytes}; the file is"
            " cut or its header is wrong"
        )
    return StoredTensor(name, path, kind, shape, begin + offset, nbytes)


def _check_overlap(tensors: dict[str, StoredTensor], path: Path) -> None:
    """Gaps are padding; no byte may be of two tensors."""
    end, previous = 0, ""
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            raise CheckpointError(f"{path}: tensor {tensor.name!r} overlaps {previous!r}")
        end, previous = tensor.offset + tensor.nbytes, tensor.name


def _sha256(file: BinaryIO, nbytes: int) -> str:
    assert nbytes <= MAX_HEADER_BYTES
    digest = hashlib.sha256()
    file.seek(0)
    while nbytes:
        block = file.read(min(_HASH_BYTES, nbytes))
        if not block:
            break
        digest.update(block)
        nbytes -= len(block)
    return digest.hexdigest()
