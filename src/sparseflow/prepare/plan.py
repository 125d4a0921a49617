"""What a container will hold, worked out from a checkpoint's headers before a byte of it is written; and its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.companions import MAX_COMPANION_BYTES
from sparseflow.checkpoint.expert_slices import ExpertSlices
from sparseflow.checkpoint.json_file import read_small_file
from sparseflow.container.dense_layout import (
    DENSE_NAME,
    DenseTensor,
    build_dense_header,
    dense_tensors,
)
from sparseflow.container.format import SfiLayout
from sparseflow.container.manifest import (
    FORMAT_VERSION,
    ExpertsRecord,
    FileRecord,
    Manifest,
    expert_file_name,
)
from sparseflow.container.matrix_formats import check_dtype
from sparseflow.container.recipes import Recipe
from sparseflow.container.writer import Read, Write, seal_layer, write_layer
from sparseflow.errors import CheckpointError, ContainerError, UnsupportedError
from sparseflow.models.registry import memory_needs
from sparseflow.prepare.dense import check_dense, dense_blocks
from sparseflow.prepare.expert_layers import expert_blobs, expert_pieces, expert_shards
from sparseflow.prepare.source import copied_files, generated_files, source_identity


@dataclass(frozen=True)
class ContainerPlan:
    """Every file of a container: its size now, its bytes on demand. Made by `plan_container`."""

    checkpoint: Checkpoint
    recipe: Recipe
    slices: ExpertSlices
    dense: list[DenseTensor]
    layouts: dict[str, SfiLayout]
    """By name of the .sfi file, in layer order."""
    source: dict[str, Any]
    copied: dict[str, int]
    """Files taken over as they are, with their sizes."""
    generated: dict[str, bytes]
    """Files that take the place of copied ones, with their content."""

    @property
    def identity(self) -> dict[str, Any]:
        """What an unfinished container must share with this one to be continued."""
        return {"format_version": FORMAT_VERSION, "recipe": self.recipe.name, "source": self.source}

    @cached_property
    def file_bytes(self) -> dict[str, int]:
        """Size of every file but the manifest, in the order of writing."""
        experts = {name: layout.file_bytes for name, layout in self.layouts.items()}
        generated = {name: len(data) for name, data in self.generated.items()}
        return {**generated, **self.copied, DENSE_NAME: self._dense_header[2], **experts}

    def produce(self, name: str, write: Write) -> None:
        """Writes the bytes of a file in pieces, in any order, each once.

        Raises CheckpointError, UnsupportedError and StorageError for what is met on the way.
        """
        if name in self.layouts:
            layout = self.layouts[name]
            write_layer(write, layout, expert_blobs(self.checkpoint, self.slices, layout))
        elif name == DENSE_NAME:
            write(memoryview(self._dense_header[0]), 0)
            self._write_dense(self.dense, write)
        elif name in self.generated:
            write(memoryview(self.generated[name]), 0)
        else:
            path = self.checkpoint.path / name
            write(memoryview(read_small_file(path, MAX_COMPANION_BYTES, CheckpointError)), 0)

    @cached_property
    def shards(self) -> dict[str, set[str]]:
        """File names of the shards that each file is made of; none for files taken over."""
        experts = {
            name: expert_shards(self.slices, layout.layer) for name, layout in self.layouts.items()
        }
        dense = {self._shard_of(tensor) for tensor in self.dense if tensor.canonical}
        whole: dict[str, set[str]] = {name: set() for name in (*self.generated, *self.copied)}
        return {**whole, DENSE_NAME: dense, **experts}

    def produce_from(self, shard: str, name: str, write: Write) -> None:
        """Writes what a shard holds of a file. Raises as `produce`."""
        if name in self.layouts:
            layout = self.layouts[name]
            pieces = expert_pieces(self.checkpoint, self.slices, layout, shard)
            for offset, data in pieces:
                write(data.data, offset)
        else:
            held = [t for t in self.dense if t.canonical and self._shard_of(t) == shard]
            self._write_dense(held, write)

    def complete(self, name: str, write: Write, read: Read) -> None:
        """Writes what no shard holds of a file, once `produce_from` has written what each of its shards does."""
        if name in self.layouts:
            seal_layer(read, write, self.layouts[name])
        else:
            write(memoryview(self._dense_header[0]), 0)
            self._write_dense([tensor for tensor in self.dense if not tensor.canonical], write)

    def manifest(self, files: dict[str, FileRecord]) -> Manifest:
        """The manifest of the finished container, given the record of every file."""
        layout = next(iter(self.layouts.values()))
        return Manifest(
            model_type=self.checkpoint.config["model_type"],
            recipe=self.recipe.name,
            source=self.source,
            tensors={tensor.name: tensor.record for tensor in self.dense},
            experts=ExpertsRecord(
                layout.weight_format,
                len(self.layouts),
                layout.num_experts,
                layout.hidden_size,
                layout.moe_intermediate_size,
            ),
            files={name: files[name] for name in self.file_bytes},
        )

    @cached_property
    def _dense_header(self) -> tuple[bytes, dict[str, int], int]:
        return build_dense_header({tensor.name: tensor.record for tensor in self.dense})

    def _shard_of(self, tensor: DenseTensor) -> str:
        return self.checkpoint.get(tensor.canonical, tensor.source_shape).file.name

    def _write_dense(self, tensors: list[DenseTensor], write: Write) -> None:
        offsets = self._dense_header[1]
        for block in dense_blocks(self.checkpoint, tensors):
            write(block.data.data, offsets[block.entry] + block.offset)


def plan_container(
    checkpoint: Checkpoint, recipe: Recipe, tokenizer: Path | None = None
) -> ContainerPlan:
    """Checks that the checkpoint has all that a container needs and nothing that is not known. `tokenizer` as
    `generated_files`.

    Raises CheckpointError, UnsupportedError and, for a tokenizer that is not there, ConfigError.
    """
    unknown = checkpoint.unknown
    if unknown:
        names = ", ".join(repr(tensor.name) for tensor in unknown[:3])
        raise UnsupportedError(
            f"{checkpoint.path}: {len(unknown)} tensor(s) that no part of"
            f" {checkpoint.config['model_type']} claims: {names}; `sparseflow inspect` lists all"
        )
    _check_variant(checkpoint.config)
    slices = ExpertSlices(checkpoint)
    check_dtype(slices.dtype, f"{checkpoint.path}: weights of experts")
    dense = dense_tensors(checkpoint.config, recipe)
    check_dense(checkpoint, dense)
    layouts = {
        expert_file_name(layer): SfiLayout(
            layer,
            slices.num_experts,
            slices.hidden_size,
            slices.moe_intermediate_size,
            recipe.experts,
        )
        for layer in range(slices.num_layers)
    }
    generated = generated_files(checkpoint, tokenizer)
    source = source_identity(checkpoint, generated)
    copied = copied_files(checkpoint)
    return ContainerPlan(checkpoint, recipe, slices, dense, layouts, source, copied, generated)


def _check_variant(config: dict[str, Any]) -> None:
    """Refuses, before anything is written, what the family could not run afterwards."""
    try:
        memory_needs(config["model_type"], config)
    except ContainerError as problem:
        raise CheckpointError(str(problem)) from None
