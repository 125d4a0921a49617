"""A container as an engine sees it: configuration, dense tensors, rows of the embedding, paths of
the expert files.

Opening checks names, sizes and shapes, not hashes; `verify` does those.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sparseflow.checkpoint.checkpoint import pread_full, storage_errors
from sparseflow.checkpoint.header import TensorEntry, read_header
from sparseflow.checkpoint.model_config import read_text_config
from sparseflow.container.agreement import check_config, check_entries, check_files
from sparseflow.container.dense_layout import DENSE_NAME, EMBEDDING_NAME, entries_of
from sparseflow.container.format import SECTION_NAMES, SfiLayout
from sparseflow.container.manifest import (
    Manifest,
    TensorRecord,
    expert_file_name,
    read_manifest,
)
from sparseflow.container.matrix_formats import view_scales
from sparseflow.container.recipes import FLOAT32
from sparseflow.errors import ConfigError, ContainerError

HUGE_PAGE_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A weight matrix in memory, as `_ext.Matrix` takes it."""

    format: str
    rows: int
    cols: int
    codes: NDArray[np.uint8]
    """1-D, 64-byte aligned, anonymous memory."""
    scales: NDArray[np.float32] | NDArray[np.float16] | None
    """1-D as the format orders them, or None if it has none."""


@dataclass(frozen=True, slots=True)
class ExpertSection:
    """Where codes or scales of one projection of one expert lie."""

    projection: str
    tensor: str
    file: Path
    offset: int
    nbytes: int
    dtype: str
    shape: list[int]
    """[rows, cols] of the matrix, without padding."""


class Container:
    """The container in a directory. A context manager: closing gives the file descriptor back."""

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        config: dict[str, Any],
        entries: dict[str, TensorEntry],
    ) -> None:
        self.path = directory
        self.manifest = manifest
        self.config = config
        self._entries = entries
        self._dense_path = directory / DENSE_NAME
        with storage_errors(self._dense_path, 0, "open"):
            self._descriptor = os.open(self._dense_path, os.O_RDONLY | os.O_CLOEXEC)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Reads manifest, config and the header of dense.safetensors, and checks that they agree
        and every file is there.

        Raises ContainerError, UnsupportedError or StorageError.
        """
        manifest = read_manifest(directory)
        check_files(directory, manifest)
        config = read_text_config(directory, ContainerError)
        check_config(directory, manifest, config)
        entries = read_header(directory / DENSE_NAME, ContainerError).tensors
        check_entries(directory / DENSE_NAME, manifest.tensors, entries)
        return cls(directory, manifest, config, entries)

    @property
    def expert_files(self) -> list[Path]:
        """The .sfi file of every layer."""
        return [
            self.path / expert_file_name(layer) for layer in range(self.manifest.experts.num_layers)
        ]

    @property
    def layouts(self) -> list[SfiLayout]:
        """Where everything lies in the .sfi file of every layer, as the manifest's geometry asks for."""
        experts = self.manifest.experts
        return [SfiLayout.of(experts, layer) for layer in range(experts.num_layers)]

    def expert_sections(self, layer: int, expert: int) -> list[tuple[ExpertSection, bytes]]:
        """Codes and scales of the projections of one expert, with their bytes, which are not checked.

        Raises ConfigError if there is no such expert, ContainerError if the file is cut.
        """
        experts = self.manifest.experts
        if not 0 <= layer < experts.num_layers or not 0 <= expert < experts.num_experts:
            raise ConfigError(
                f"no expert {layer}:{expert}; layers are 0 to {experts.num_layers - 1}, experts 0 to"
                f" {experts.num_experts - 1}"
            )
        layout, path = self.layouts[layer], self.expert_files[layer]
        found = []
        for i, (begin, nbytes) in enumerate(layout.sections):
            if nbytes:
                offset = layout.blob_offset(expert) + begin
                shape = list(layout.shapes[i // 2])
                section = ExpertSection(
                    f"{SECTION_NAMES[i]}",
                    expert_file_name(layer),
                    path,
                    offset,
                    nbytes,
                    layout.weight_format,
                    shape,
                )
                with storage_errors(path, offset, "read"), path.open("rb") as file:
                    file.seek(offset)
                    found.append((section, file.read(nbytes)))
        return found

    def read_matrix(self, name: str) -> TensorBytes:
        """A matrix of dense.safetensors, in memory of its own. Raises ConfigError if there is none
        of that name.
        """
        record = self._record(name)
        if len(record.shape) != 2:
            raise ConfigError(
                f"{self._dense_path}: {name!r} has shape {list(record.shape)}; it is not a matrix"
            )
        arrays = [self.read_entry(entry.name) for entry in entries_of(name, record)]
        scales = view_scales(record.weight_format, arrays[1]) if len(arrays) > 1 else None
        if scales is not None and not np.isfinite(scales).all():
            raise ContainerError(
                f"{self._dense_path}: {name!r} has a scale that is not finite; prepare again"
            )
        return TensorBytes(
            record.weight_format, record.shape[0], record.shape[1], arrays[0], scales
        )

    def read_vector(self, name: str) -> NDArray[np.float32]:
        """A float32 tensor in its own shape (vectors, and small matrices such as a convolution)."""
        record = self._record(name)
        if record.weight_format != FLOAT32:
            raise ConfigError(
                f"{self._dense_path}: {name!r} is {record.weight_format}, not float32"
            )
        values = self.read_entry(name).view(np.float32).reshape(record.shape)
        if not np.isfinite(values).all():
            raise ContainerError(
                f"{self._dense_path}: {name!r} has a value that is not finite; prepare again"
            )
        return values

    def embedding_rows(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.uint16]:
        """BF16 bit patterns [len(ids), hidden_size] of rows of the embedding, read from storage row
        by row.
        """
        num_rows, cols = self._record(EMBEDDING_NAME).shape
        rows = np.empty((len(ids), cols), np.uint16)
        entry = self._entries[EMBEDDING_NAME]
        for i, token in enumerate(ids):
            if not 0 <= token < num_rows:
                raise ConfigError(f"token {token} is not in the vocabulary of {num_rows}")
            self._read_into(rows[i].view(np.uint8).data, entry.offset + int(token) * cols * 2)
        return rows

    def read_entry(
        self, entry_name: str, offset: int = 0, nbytes: int | None = None
    ) -> NDArray[np.uint8]:
        """Bytes of an entry of dense.safetensors (a tensor, or its `.codes` or `.scales`), or of a part of it.

        Raises ConfigError if there is no such entry.
        """
        entry = self._entries.get(entry_name)
        if entry is None:
            raise ConfigError(f"{self._dense_path}: no entry {entry_name!r}")
        buffer = aligned_empty(entry.nbytes - offset if nbytes is None else nbytes)
        self._read_into(buffer.data, entry.offset + offset)
        return buffer

    def close(self) -> None:
        """Gives the file descriptor back; closing twice is harmless."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _record(self, name: str) -> TensorRecord:
        record = self.manifest.tensors.get(name)
        if record is None:
            raise ConfigError(f"{self.path}: the container has no tensor {name!r}")
        return record

    def _read_into(self, buffer: memoryview, offset: int) -> None:
        if pread_full(self._descriptor, buffer, offset, self._dense_path) < len(buffer):
            raise ContainerError(f"{self._dense_path}: the file was cut after it was opened")


def aligned_empty(nbytes: int) -> NDArray[np.uint8]:
    """Anonymous memory aligned to 64 bytes; large arrays to 2 MiB, on huge pages where the system
    gives them.
    """
    if nbytes < HUGE_PAGE_BYTES:
        memory = np.empty(nbytes + 64, np.uint8)
        return memory[(begin := -memory.ctypes.data % 64) : begin + nbytes]
    mapping = mmap.mmap(-1, nbytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapping, np.uint8)
    return memory[(begin := -memory.ctypes.data % HUGE_PAGE_BYTES) : begin + nbytes]
