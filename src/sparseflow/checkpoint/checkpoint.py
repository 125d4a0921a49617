"""A checkpoint as a whole: every tensor with its file, byte range, type, shape and class; reads by
byte range.

Opening reads config.json, the index and the headers, never the payload.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sparseflow.checkpoint.header import Header
from sparseflow.checkpoint.index import read_shard_headers
from sparseflow.checkpoint.model_config import read_text_config
from sparseflow.checkpoint.tensor_classes import (
    Family,
    TensorClass,
    TensorIdentity,
    find_identity,
    get_family,
)
from sparseflow.errors import CheckpointError, StorageError


@dataclass(frozen=True, slots=True)
class CheckpointTensor:
    """One tensor of a checkpoint and where its bytes lie."""

    name: str
    """As the publisher wrote it."""
    identity: TensorIdentity | None
    """None: nothing claims it."""
    file: Path
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


class Checkpoint:
    """The safetensors checkpoint in a directory. A context manager: closing gives the file
    descriptors back.

    `tensors` is by the publisher's names; `get` is by canonical name.
    """

    def __init__(self, directory: Path, config: dict[str, Any], headers: list[Header]) -> None:
        self.path = directory
        self.config = config
        self.headers = headers
        self.family: Family = get_family(config["model_type"])
        self.dimensions: dict[str, int] = self.family.dimensions(config)
        self.tensors: dict[str, CheckpointTensor] = {}
        self._by_canonical: dict[str, CheckpointTensor] = {}
        self.payload: Path | None = None
        """Where the bytes of the shards lie, if not in the files that the headers were read from."""
        self._descriptors: dict[Path, int] = {}
        self._opening = threading.Lock()
        for header in headers:
            for entry in header.tensors.values():
                identity = find_identity(entry.name, self.family, config)
                self._add(
                    CheckpointTensor(
                        entry.name,
                        identity,
                        header.path,
                        entry.offset,
                        entry.nbytes,
                        entry.dtype,
                        entry.shape,
                    )
                )

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Reads config and headers.

        Raises CheckpointError for damaged files, UnsupportedError for a family or quantization that
        is not known, and StorageError if a file cannot be read.
        """
        if not directory.is_dir():
            raise CheckpointError(
                f"{directory}: not a directory; give the one with config.json and the shards"
            )
        config = read_text_config(directory)
        return cls(directory, config, read_shard_headers(directory))

    def _add(self, tensor: CheckpointTensor) -> None:
        self.tensors[tensor.name] = tensor
        if tensor.identity is None:
            return
        other = self._by_canonical.setdefault(tensor.identity.canonical, tensor)
        if other is not tensor:
            raise CheckpointError(
                f"{self.path}: {tensor.name!r} and {other.name!r} are the same tensor"
            )

    @property
    def unknown(self) -> list[CheckpointTensor]:
        """The tensors that nothing claims."""
        return [tensor for tensor in self.tensors.values() if tensor.identity is None]

    @property
    def quantized_types(self) -> list[str]:
        """Names of the types from which weights are dequantized; of safetensors, none."""
        return []

    def stored_sizes(self) -> Iterator[tuple[TensorClass | None, int, str]]:
        """Class (None: nothing claims it), bytes and type of every tensor as it is stored."""
        for tensor in self.tensors.values():
            tensor_class = None if tensor.identity is None else tensor.identity.tensor_class
            yield tensor_class, tensor.nbytes, tensor.dtype

    def find(self, canonical: str) -> CheckpointTensor | None:
        """The tensor of that canonical name, or None."""
        return self._by_canonical.get(canonical)

    def get(self, canonical: str, shape: tuple[int, ...]) -> CheckpointTensor:
        """The tensor of that canonical name, which must have that shape. Raises CheckpointError
        otherwise.
        """
        tensor = self.find(canonical)
        if tensor is None:
            raise CheckpointError(f"{self.path}: tensor {canonical!r} is missing")
        if tensor.shape != shape:
            raise CheckpointError(
                f"{tensor.file}: tensor {tensor.name!r} has shape {list(tensor.shape)};"
                f" config.json asks for {list(shape)}"
            )
        return tensor

    def read_into(self, file: Path, offset: int, buffer: memoryview) -> None:
        """Fills `buffer` with the bytes of a shard from `offset` on.

        Any number of threads may read. Raises StorageError if the read fails and CheckpointError if
        the file ends before the buffer is full.
        """
        if self.payload is not None:
            file = self.payload / file.name
        with self._opening, storage_errors(file, 0, "open"):
            descriptor = self._descriptors.get(file)
            if descriptor is None:
                descriptor = self._descriptors[file] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        if pread_full(descriptor, buffer, offset, file) < len(buffer):
            raise CheckpointError(
                f"{file}: the file ends before byte {offset + len(buffer)}; it was cut after it"
                " was opened"
            )

    def close(self) -> None:
        """Gives the file descriptors back; reading opens them again."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def pread_full(descriptor: int, buffer: memoryview, offset: int, path: Path) -> int:
    """Reads until `buffer` (bytes) is full or the file ends; returns the bytes read. Raises
    StorageError.
    """
    done = 0
    while done < len(buffer):
        with storage_errors(path, offset + done, "read"):
            count = os.preadv(descriptor, [buffer[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


@contextmanager
def storage_errors(path: Path, offset: int, verb: str) -> Iterator[None]:
    """Turns an OSError inside the block into a StorageError that carries path, offset and errno."""
    try:
        yield
    except OSError as problem:
        raise StorageError(
            f"{path}: cannot {verb} at byte {offset}: {problem.strerror}",
            path=str(path),
            offset=offset,
            errno=problem.errno,
        ) from None
