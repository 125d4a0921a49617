"""Turns a checkpoint into a container: files one after another, each durable before it counts as finished.

Killed at any moment it goes on where it was, and the result is the same to the byte. Memory stays small: the blob of
one expert, and some rows of the checkpoint that are read ahead and converted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from sparseflow.checkpoint.checkpoint import Checkpoint, storage_errors
from sparseflow.checkpoint.open import open_checkpoint
from sparseflow.container.manifest import read_manifest
from sparseflow.container.recipes import DEFAULT_RECIPE, get_recipe
from sparseflow.container.writer import Write
from sparseflow.errors import (
    BudgetError,
    CheckpointError,
    ConfigError,
    SparseFlowError,
    UnsupportedError,
)
from sparseflow.prepare.plan import ContainerPlan, plan_container
from sparseflow.prepare.workspace import Workspace, open_workspace

Progress = Callable[[str, int, int], None]
"""Called with the name of the task, bytes done and bytes in all."""

RESERVE_BYTES = 4 << 20
"""Kept free beyond the container's own files: manifest, journal, directories."""


def prepare(
    source: Path | Checkpoint,
    output: Path,
    recipe: str = DEFAULT_RECIPE,
    progress: Progress | None = None,
    *,
    wait: bool = False,
    tokenizer: Path | None = None,
) -> Path:
    """Writes the container of the checkpoint in `source` to the directory `output`, and returns `output`.

    `source` is a directory, or a GGUF file, whose quantized weights are dequantized and quantized anew; `tokenizer`, a
    directory or a tokenizer.json, takes the place of the tokenizer in its metadata. `source` may also be a checkpoint
    already open, which stays so: one, for instance, that makes its weights when they are read.

    An unfinished container of the same checkpoint and recipe is continued; a finished one is left as it is. Another
    process preparing the same directory is waited for if `wait`.

    Raises CheckpointError, UnsupportedError, ConfigError (unknown recipe, `output` holds something else), BudgetError
    (not enough space) and StorageError. After an error nothing half-written is left; finished files stay for the next
    try unless the checkpoint is at fault. An interrupt leaves what can be continued.
    """
    chosen = get_recipe(recipe)
    opened = nullcontext(source) if isinstance(source, Checkpoint) else open_checkpoint(source)
    with opened as checkpoint:
        plan = plan_container(checkpoint, chosen, tokenizer)
        with open_workspace(output, wait=wait) as workspace:
            if workspace.is_complete:
                check_same(plan, workspace)
                workspace.clean()
                return output
            workspace.begin(plan.identity, plan.file_bytes)
            try:
                _write_files(plan, workspace, progress)
            except SparseFlowError as error:
                workspace.drop_parts()
                is_source_wrong = isinstance(error, CheckpointError | UnsupportedError)
                if workspace.is_fresh and (is_source_wrong or not workspace.finished):
                    workspace.discard()
                raise
    return output


def check_same(plan: ContainerPlan, workspace: Workspace) -> None:
    """Raises ConfigError if the finished container is not the planned one."""
    manifest = read_manifest(workspace.output)
    if (manifest.source, manifest.recipe) != (plan.source, plan.recipe.name):
        raise ConfigError(
            f"{workspace.output}: already holds a container ({manifest.recipe}) of another checkpoint or recipe;"
            " remove it"
            " or choose another directory"
        )


def _write_files(plan: ContainerPlan, workspace: Workspace, progress: Progress | None) -> None:
    sizes = plan.file_bytes
    total = sum(sizes.values())
    done = sum(sizes[name] for name in workspace.finished)
    check_space(workspace.output, total - done)
    left = [name for name in sizes if name not in workspace.finished]

    def produce(write: Write, name: str) -> None:
        def count(data: memoryview, offset: int) -> None:
            nonlocal done
            write(data, offset)
            done += len(data)
            if progress is not None:
                progress("prepare", done, total)

        plan.produce(name, count)

    # A file is synced and hashed while the next is made.
    with ThreadPoolExecutor(1, "settle") as settler:
        settling: Future[None] | None = None
        for name in left:
            workspace.write(name, sizes[name], partial(produce, name=name))
            if settling is not None:
                settling.result()
            settling = settler.submit(workspace.settle, name)
        if settling is not None:
            settling.result()
    workspace.finish(plan.manifest(workspace.finished).to_json())


def check_space(output: Path, nbytes: int, purpose: str = "") -> None:
    """Raises BudgetError if less is free for `output` than `nbytes` and the reserve; `purpose` follows the number."""
    needed = nbytes + RESERVE_BYTES
    with storage_errors(output, 0, "ask for free space"):
        free = shutil.disk_usage(output).free
    if free < needed:
        raise BudgetError(
            f"{output}: {needed} bytes{purpose} are needed there, {free} are free:"
            f" {needed - free} bytes missing",
            needed_bytes=needed,
            available_bytes=free,
        )
