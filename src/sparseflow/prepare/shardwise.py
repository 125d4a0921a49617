"""Writes a container's files from one shard of the checkpoint after another, so that no two shards have to be there
together; the next one is fetched while one is converted.

A shard's weights go to their places in the temporary files of all layers that it touches. It counts as converted once
those files are durable; converting it again writes the same bytes.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

from sparseflow.container.writer import Read, Write
from sparseflow.prepare.plan import ContainerPlan
from sparseflow.prepare.prepare import Progress
from sparseflow.prepare.workspace import Workspace


class ShardSupply(Protocol):
    """Where shards come from. `fetch` runs on a thread of its own."""

    def fetch(self, shard: str) -> Path:
        """Returns when the shard of that file name can be read whole. Raises what keeps it from coming."""

    def release(self, shard: str) -> None:
        """The shard will not be read again."""

    def stop(self) -> None:
        """Makes a `fetch` that is under way end soon."""


def begin_by_shard(plan: ContainerPlan, workspace: Workspace) -> list[str]:
    """Begins or continues a container, and returns the shards that are still to be converted, in order."""
    workspace.begin(plan.identity, plan.file_bytes, by_shard=True)
    missing: set[str] = set()
    for name, shards in plan.shards.items():
        if name not in workspace.finished:
            missing |= shards - workspace.shards if workspace.has_part(name) else shards
    workspace.forget_shards(missing)
    return sorted(missing)


def write_by_shard(
    plan: ContainerPlan,
    workspace: Workspace,
    supply: ShardSupply,
    order: list[str],
    progress: Progress | None = None,
) -> None:
    """Fetches the shards of `order` and converts those that the workspace lacks, until every file but the manifest is
    finished.

    REQUIRES: `begin_by_shard` has returned, and `order` holds what it returned. Raises CheckpointError,
    UnsupportedError, StorageError, and what `supply` raises.
    """
    work = _Conversion(plan, workspace, progress)
    work.settle_complete()
    with ThreadPoolExecutor(1, "fetch") as fetcher:
        try:
            fetching: list[Future[Path]] = [
                fetcher.submit(supply.fetch, name) for name in order[:1]
            ]
            for number, shard in enumerate(order):
                fetching[number].result()
                fetching += [fetcher.submit(supply.fetch, name) for name in order[number + 1 :][:1]]
                work.convert(shard)
                supply.release(shard)
                work.settle_complete()
        finally:
            supply.stop()
    assert not plan.file_bytes.keys() - workspace.finished.keys()
    work.report(work.total - work.done)


class _Conversion:
    """Counts the container's bytes; those that an earlier run wrote are taken from the disk."""

    def __init__(
        self, plan: ContainerPlan, workspace: Workspace, progress: Progress | None
    ) -> None:
        self._plan = plan
        self._workspace = workspace
        self._progress = progress
        self.total = sum(plan.file_bytes.values())
        self.done = min(self.total, workspace.used_bytes())

    def report(self, nbytes: int) -> None:
        """So many more bytes are done."""
        self.done = min(self.total, self.done + nbytes)
        if self._progress is not None:
            self._progress("prepare", self.done, self.total)

    def convert(self, shard: str) -> None:
        """Writes what a shard holds of unfinished files; nothing if that has been done."""
        plan, workspace = self._plan, self._workspace
        if shard in workspace.shards:
            return
        for name, shards in plan.shards.items():
            if shard in shards and name not in workspace.finished:
                workspace.write_part(name, partial(self._produce_from, shard, name))
        plan.checkpoint.close()  # a file that is deleted while open keeps its blocks
        workspace.finish_shard(shard)

    def settle_complete(self) -> None:
        """Finishes the files all of whose shards are converted."""
        plan, workspace = self._plan, self._workspace
        for name, shards in plan.shards.items():
            if name in workspace.finished or shards - workspace.shards:
                continue
            workspace.write_part(name, partial(self._complete, name))
            workspace.settle(name)

    def _produce_from(self, shard: str, name: str, write: Write, read: Read) -> None:
        del read
        self._plan.produce_from(shard, name, self._counted(write))

    def _complete(self, name: str, write: Write, read: Read) -> None:
        if name in self._plan.copied:
            self._plan.produce(name, self._counted(write))
        else:
            self._plan.complete(name, self._counted(write), read)

    def _counted(self, write: Write) -> Write:
        def count(data: memoryview, offset: int) -> None:
            write(data, offset)
            self.report(len(data))

        return count
