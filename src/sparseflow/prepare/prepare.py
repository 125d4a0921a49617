"""Turns a checkpoint into a container: files one after another, each durable before the next
begins.

Killed at any moment it goes on where it was, and the result is the same to the byte. Memory stays
small: one expert, or a few rows of a dense tensor, at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparseflow.checkpoint.checkpoint import Checkpoint, storage_errors
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
    Manifest,
    expert_file_name,
    read_manifest,
)
from sparseflow.container.recipes import Recipe, get_recipe
from sparseflow.container.writer import Write, write_layer
from sparseflow.errors import (
    BudgetError,
    CheckpointError,
    ConfigError,
    SparseFlowError,
    UnsupportedError,
)
from sparseflow.prepare.dense import check_dense, dense_blocks
from sparseflow.prepare.expert_layers import expert_blobs
from sparseflow.prepare.source import COPIED_NAMES, MAX_COPIED_BYTES, source_identity
from sparseflow.prepare.workspace import Workspace, open_workspace

Progress = Callable[[str, int, int], None]
"""Called with what is being written, bytes done and bytes in all."""

RESERVE_BYTES = 4 << 20
"""Kept free beyond the container's own files: manifest, journal, directories."""


def prepare(
    source: Path,
    output: Path,
    recipe: str = "int8",
    progress: Progress | None = None,
    *,
    wait: bool = False,
) -> Path:
    """Writes the container of the checkpoint in `source` to the directory `output`, and returns
    `output`.

    An unfinished container of the same checkpoint and recipe is continued; a finished one is left
    as it is. Another process preparing the same directory is waited for if `wait`.

    Raises CheckpointError, UnsupportedError, ConfigError (unknown recipe, `output` holds something
    else), BudgetError (not enough space) and StorageError. After an error nothing half-written is
    left; finished files stay for the next try unless the checkpoint is at fault.
    """
    with Checkpoint.open(source) as checkpoint:
        plan = plan_container(checkpoint, get_recipe(recipe))
        with open_workspace(output, plan.identity, wait=wait) as workspace:
            if workspace.is_complete:
                _check_same(plan, workspace)
                workspace.clean()
                return output
            workspace.begin()
            try:
                _write_files(plan, workspace, progress)
            except SparseFlowError as error:
                if workspace.is_fresh and (
                    isinstance(error, CheckpointError | UnsupportedError) or not workspace.finished
                ):
                    workspace.discard()
                raise
    return output


@dataclass(frozen=True)
class ContainerPlan:
    """Everything about a container that is known before a byte of it is written."""

    checkpoint: Checkpoint
    recipe: Recipe
    slices: ExpertSlices
    dense: list[DenseTensor]
    layouts: list[SfiLayout]
    source: dict[str, Any]
    copied: dict[str, int]
    """Files taken over as they are, with their sizes."""

    @property
    def identity(self) -> dict[str, Any]:
        """What an unfinished container must share to be continued."""
        return {"format_version": FORMAT_VERSION, "recipe": self.recipe.name, "source": self.source}

    @property
    def file_bytes(self) -> dict[str, int]:
        """Size of every file, in the order of writing."""
        dense = build_dense_header({tensor.name: tensor.record for tensor in self.dense})[2]
        experts = {expert_file_name(layout.layer): layout.file_bytes for layout in self.layouts}
        return {**self.copied, DENSE_NAME: dense, **experts}

    def manifest(self, workspace: Workspace) -> Manifest:
        """The manifest of the finished container."""
        layout = self.layouts[0]
        experts = ExpertsRecord(
            layout.weight_format,
            len(self.layouts),
            layout.num_experts,
            layout.hidden_size,
            layout.moe_intermediate_size,
        )
        return Manifest(
            model_type=self.checkpoint.config["model_type"],
            recipe=self.recipe.name,
            source=self.source,
            tensors={tensor.name: tensor.record for tensor in self.dense},
            experts=experts,
            files={name: workspace.finished[name] for name in self.file_bytes},
        )


def plan_container(checkpoint: Checkpoint, recipe: Recipe) -> ContainerPlan:
    """Checks that the checkpoint has all that a container needs and nothing that is not known.

    Raises CheckpointError and UnsupportedError.
    """
    unknown = checkpoint.unknown
    if unknown:
        names = ", ".join(repr(tensor.name) for tensor in unknown[:3])
        raise UnsupportedError(
            f"{checkpoint.path}: {len(unknown)} tensor(s) that no part of"
            f" {checkpoint.config['model_type']} claims: {names}"
        )
    slices = ExpertSlices(checkpoint)
    dims = checkpoint.dimensions
    layouts = [
        SfiLayout(
            layer,
            dims["num_experts"],
            dims["hidden_size"],
            dims["moe_intermediate_size"],
            recipe.experts,
        )
        for layer in range(slices.num_layers)
    ]
    copied = {
        name: (checkpoint.path / name).stat().st_size
        for name in COPIED_NAMES
        if (checkpoint.path / name).is_file()
    }
    dense = dense_tensors(checkpoint.config, recipe)
    check_dense(checkpoint, dense)
    return ContainerPlan(
        checkpoint, recipe, slices, dense, layouts, source_identity(checkpoint), copied
    )


def _check_same(plan: ContainerPlan, workspace: Workspace) -> None:
    manifest = read_manifest(workspace.output)
    if (manifest.source, manifest.recipe) != (plan.source, plan.recipe.name):
        raise ConfigError(
            f"{workspace.output}: holds the {manifest.recipe} container of another checkpoint or"
            " recipe; remove it or choose"
            " another directory"
        )


def _write_files(plan: ContainerPlan, workspace: Workspace, progress: Progress | None) -> None:
    sizes = plan.file_bytes
    _check_space(
        workspace, sum(size for name, size in sizes.items() if name not in workspace.finished)
    )
    meter = _Meter(progress, sum(sizes.values()))
    layouts = {expert_file_name(layout.layer): layout for layout in plan.layouts}
    for name, size in sizes.items():
        if name in workspace.finished:
            meter.add(name, size)
            continue

        def produce(write: Write, name: str = name) -> None:
            def metered(data: Any, offset: int) -> None:
                write(data, offset)
                meter.add(name, len(memoryview(data).cast("B")))

            if name in layouts:
                write_layer(
                    metered,
                    layouts[name],
                    expert_blobs(plan.checkpoint, plan.slices, layouts[name]),
                )
            elif name == DENSE_NAME:
                _write_dense(plan, metered)
            else:
                metered(
                    read_small_file(plan.checkpoint.path / name, MAX_COPIED_BYTES, CheckpointError),
                    0,
                )

        workspace.write(name, size, produce)
    workspace.finish(plan.manifest(workspace).to_json())


def _write_dense(plan: ContainerPlan, write: Write) -> None:
    header, offsets, _ = build_dense_header({tensor.name: tensor.record for tensor in plan.dense})
    write(header, 0)
    for tensor in plan.dense:
        for block in dense_blocks(plan.checkpoint, tensor):
            write(block.data, offsets[block.entry] + block.offset)


def _check_space(workspace: Workspace, nbytes: int) -> None:
    needed = nbytes + RESERVE_BYTES
    with storage_errors(workspace.output, 0, "ask for free space"):
        free = shutil.disk_usage(workspace.output).free
    if free < needed:
        raise BudgetError(
            f"{workspace.output}: {needed} bytes are needed there, {free} are free:"
            f" {needed - free} bytes missing",
            needed_bytes=needed,
            available_bytes=free,
        )


class _Meter:
    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def add(self, what: str, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(what, self._done, self._total)
