"""A GGUF file, or a set of split ones, as the checkpoint that it was made of: tensors are computed when read."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from sparseflow.checkpoint.checkpoint import Checkpoint, CheckpointTensor
from sparseflow.checkpoint.gguf.config import Metadata, read_config
from sparseflow.checkpoint.gguf.header import GgufHeader, StoredTensor
from sparseflow.checkpoint.gguf.names import (
    A_LOG,
    NEG_EXP_A,
    PLACES,
    Undo,
    is_second_part,
    other_part,
    split_name,
)
from sparseflow.checkpoint.gguf.orders import undo_orders
from sparseflow.checkpoint.gguf.split import read_headers
from sparseflow.checkpoint.gguf.values import VirtualTensor, import_gguf
from sparseflow.checkpoint.header import Header
from sparseflow.checkpoint.model_config import check_text_config
from sparseflow.checkpoint.tensor_classes import TensorClass, TensorIdentity, find_identity
from sparseflow.errors import CheckpointError


class GgufCheckpoint(Checkpoint):
    """`tensors` has them under the file's names, as float32 or, where nothing is computed, F16 or BF16; the embedding
    is always BF16, as in every container. Offsets are addresses that only `read_into` understands. -exp(A_log) has
    the canonical name `...linear_attn.neg_exp_a` and A_log is not there: its logarithm would not be exact.
    """

    def __init__(self, path: Path, files: list[GgufHeader]) -> None:
        """Of headers as `read_headers` gives them. Raises what `open` raises."""
        self.metadata = files[0].metadata
        self.stored = {name: tensor for file in files for name, tensor in file.tensors.items()}
        raw = read_config(path, self.metadata, self.stored)
        self.config_json = (json.dumps(raw, indent=2, sort_keys=True) + "\n").encode()
        """What config.json would be."""
        super().__init__(path, check_text_config(raw, path), [])
        self.headers = [Header(file.path, file.file_bytes, file.sha256, {}) for file in files]
        self._first = files[0]
        self._num_blocks = Metadata(path, self.metadata).count("block_count")
        self._virtual: list[VirtualTensor] = []
        self._addresses: list[int] = []
        self._next_address = 0
        self._expert_dtype = self._common_expert_dtype()
        for stored in self.stored.values():
            self._add_stored(stored)
        if self.quantized_types:
            import_gguf(path)

    @classmethod
    def open(cls, file: Path) -> Self:
        """Reads metadata and the list of tensors; of split files, any one may be given.

        Raises CheckpointError for damaged files, UnsupportedError for an architecture, a variant or a tensor type that
        is not read, ConfigError if the gguf package is needed and missing, and StorageError if a file cannot be read.
        """
        return cls(file, read_headers(file))

    @property
    def quantized_types(self) -> list[str]:
        """Names of the quantized types of what the text model needs, that of the most bytes first."""
        sizes: Counter[str] = Counter()
        for virtual in self._virtual:
            for part in virtual.parts:
                sizes[part.type.name] += part.nbytes if part.type.is_quantized else 0
        return [name for name, nbytes in sizes.most_common() if nbytes]

    def read_array(self, key: str) -> list[Any]:
        """A metadata array, such as the vocabulary. Raises CheckpointError if it is not there, StorageError."""
        return self._first.read_array(key)

    def stored_sizes(self) -> Iterator[tuple[TensorClass | None, int, str]]:
        """Class, bytes and type of every tensor as it is stored."""
        for name, stored in self.stored.items():
            tensor = self.tensors.get(name) or self.tensors[_first_part(name)]
            tensor_class = None if tensor.identity is None else tensor.identity.tensor_class
            yield tensor_class, stored.nbytes, stored.type.name

    def read_into(self, file: Path, offset: int, buffer: memoryview) -> None:
        """Fills `buffer` with values of one tensor, from the address `offset` on; from any number of threads.

        Raises StorageError if a read fails, CheckpointError if a file was cut or a value is not what it should be.
        """
        place = bisect_right(self._addresses, offset) - 1
        begin, virtual = self._addresses[place], self._virtual[place]
        assert file == virtual.parts[0].file
        assert offset + len(buffer) <= begin + virtual.nbytes, "one tensor is read at a time"
        virtual.read_into(offset - begin, buffer, super().read_into)

    def _add_stored(self, stored: StoredTensor) -> None:
        """Adds the tensor that begins with `stored`, or that is it; whatever nothing claims is added as unknown."""
        if is_second_part(stored.name) and _first_part(stored.name) in self.stored:
            return
        identity, undo = self._identify(stored.name)
        offset, nbytes, dtype = stored.offset, stored.nbytes, stored.type.name
        shape = stored.shape
        if identity is not None and identity.row is not None:
            shape = tuple(self.dimensions[dim] for dim in identity.row.shape)
            virtual = self._virtual_tensor(stored, identity, undo, shape)
            offset, nbytes, dtype = self._next_address, virtual.nbytes, virtual.dtype
            self._virtual.append(virtual)
            self._addresses.append(offset)
            self._next_address += nbytes
        self._add(
            CheckpointTensor(stored.name, identity, stored.file, offset, nbytes, dtype, shape)
        )

    def _identify(self, name: str) -> tuple[TensorIdentity | None, Undo]:
        """Canonical identity of a stored tensor and what to undo; of another block than the layers', MTP."""
        block, rest = split_name(name)
        num_layers = len(self.config["layer_types"])
        if block is not None and num_layers <= block < self._num_blocks:
            return TensorIdentity(name, TensorClass.MTP, None), Undo.NOTHING
        place = PLACES[self.metadata["general.architecture"]].get(rest)
        if place is None or ("{layer}" in place.canonical) != (block is not None):
            return None, Undo.NOTHING
        canonical = place.canonical.replace("{layer}", str(block))
        identity = find_identity(canonical.replace(NEG_EXP_A, A_LOG), self.family, self.config)
        if identity is not None:
            identity = replace(identity, canonical=canonical)
        return identity, place.undo

    def _virtual_tensor(
        self, stored: StoredTensor, identity: TensorIdentity, undo: Undo, shape: tuple[int, ...]
    ) -> VirtualTensor:
        parts = self._parts(stored)
        rows, cols = math.prod(shape[:-1]), shape[-1]
        part_shape = shape
        if len(parts) > 1:
            part_shape = (shape[0], shape[1] // len(parts), *shape[2:])
        for part in parts:
            _check_shape(part, part_shape)
        dtype = stored.type.name if not stored.type.is_quantized else "F32"
        if undo in (Undo.MINUS_ONE, Undo.DECAY_COLUMNS):
            dtype = "F32"
        if identity.tensor_class == TensorClass.ROUTED_EXPERT:
            dtype = self._expert_dtype
        if identity.tensor_class == TensorClass.EMBEDDING:
            dtype = "BF16"
        part_rows = part_shape[1] if len(parts) > 1 else rows
        row_order, column_order = undo_orders(undo, stored, rows, cols, self.config)
        return VirtualTensor(parts, part_rows, rows, cols, dtype, undo, row_order, column_order)

    def _parts(self, stored: StoredTensor) -> tuple[StoredTensor, ...]:
        second = other_part(stored.name)
        if second is None:
            return (stored,)
        if second not in self.stored:
            raise CheckpointError(f"{stored.file}: tensor {second!r} is missing")
        return (stored, self.stored[second])

    def _common_expert_dtype(self) -> str:
        """Experts have to be of one dtype: the stored one if it is one of 2 bytes for all, else float32."""
        types = {stored.type.name for name, stored in self.stored.items() if "_exps." in name}
        return types.pop() if types in ({"BF16"}, {"F16"}) else "F32"


def _first_part(name: str) -> str:
    return name.replace("ffn_up_exps.", "ffn_gate_exps.")


def _check_shape(stored: StoredTensor, shape: tuple[int, ...]) -> None:
    """Sizes of 1 may be left out; the order is that of `shape`."""
    if [n for n in stored.shape if n > 1] != [n for n in shape if n > 1] or (
        stored.cols != shape[-1]
    ):
        raise CheckpointError(
            f"{stored.file}: tensor {stored.name!r} has shape {list(stored.shape)};"
            f" the metadata ask for {list(shape)}"
        )
