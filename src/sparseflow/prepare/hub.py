"""A container straight from a hub: shards are downloaded, converted and deleted one after another.

Besides the container at most two shards are on the disk. Interrupted at any point it goes on where it was; the commit
that was begun with is kept to the end.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from sparseflow.checkpoint.checkpoint import Checkpoint, storage_errors
from sparseflow.checkpoint.companions import COMPANION_NAMES
from sparseflow.checkpoint.header import read_header
from sparseflow.checkpoint.hub import HubRepo, fetch_headers, open_hub
from sparseflow.checkpoint.hub_download import download
from sparseflow.checkpoint.index import INDEX_NAME
from sparseflow.checkpoint.json_file import read_json_object
from sparseflow.checkpoint.transfer import Patience
from sparseflow.container.hub_names import checkpoint_path, container_path
from sparseflow.container.recipes import DEFAULT_RECIPE, Recipe, get_recipe
from sparseflow.errors import (
    CheckpointError,
    ConfigError,
    ContainerError,
    SparseFlowError,
    StorageError,
)
from sparseflow.prepare.durable import replace_small
from sparseflow.prepare.plan import ContainerPlan, plan_container
from sparseflow.prepare.prepare import Progress, check_same, check_space
from sparseflow.prepare.shardwise import begin_by_shard, write_by_shard
from sparseflow.prepare.workspace import Workspace, open_workspace
from sparseflow.units import format_bytes

PIN_NAME = "hub.json"
HEADERS_NAME = "headers"
SHARDS_NAME = "shards"
MAX_PIN_BYTES = 4096
SHARDS_AT_ONCE = 2
"""One is converted while the next comes."""


def prepare_from_hub(
    repo_id: str,
    models_dir: Path,
    recipe: str = DEFAULT_RECIPE,
    progress: Progress | None = None,
    *,
    revision: str | None = None,
    output: Path | None = None,
    keep_checkpoint: bool = False,
    on_headers: Callable[[Checkpoint], None] | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    patience: Patience | None = None,
) -> Path:
    """Writes the container of the hub's model `repo_id` (ORG/NAME) and returns its directory: `output`, else the one
    that `container_path` says.

    `progress` is called with `download` and `prepare`, also from a second thread; `on_headers` with the checkpoint, of
    which nothing but headers can be read, before the first shard is fetched. With `keep_checkpoint` the checkpoint
    stays in `checkpoint_path(output)`; a run that goes on keeps it if the first did. An unfinished container is
    continued at its commit, which `revision` may not contradict; one that is finished at its usual place is returned
    without asking the hub, unless a `revision` is given.

    Raises what `open_hub`, `fetch_headers` and `prepare` raise; BudgetError if there is not room for the container and
    two shards, or the whole checkpoint. After an error, what can be continued stays.
    """
    chosen = get_recipe(recipe)
    usual = container_path(models_dir, repo_id, recipe)
    output = usual if output is None else output
    with open_workspace(output, wait=False) as workspace:
        if workspace.is_complete and output == usual and revision is None:
            workspace.clean()
            return output
        if not workspace.is_complete:
            workspace.check_empty()
        pinned = _read_pin(workspace, repo_id)
        repo = open_hub(
            repo_id, revision or pinned, endpoint=endpoint, token=token, patience=patience
        )
        if pinned not in (None, repo.commit):
            raise ConfigError(
                f"{output}: holds an unfinished container of commit {pinned}; {revision} is {repo.commit}: remove it or"
                " choose another directory"
            )
        if workspace.is_complete:
            _check_complete(repo, chosen, workspace)
            return output
        try:
            with Checkpoint.open(_fetch(repo, workspace)) as checkpoint:
                if on_headers is not None:
                    on_headers(checkpoint)
                plan = plan_container(checkpoint, chosen)
                _write(plan, repo, workspace, progress, keep_checkpoint=keep_checkpoint)
        except SparseFlowError as error:
            if workspace.is_fresh and not (workspace.shards or isinstance(error, StorageError)):
                workspace.discard()
            raise
    return output


def _fetch(repo: HubRepo, workspace: Workspace) -> Path:
    """The headers of the commit that is worked on, which is remembered first."""
    with storage_errors(workspace.work, 0, "create"):
        workspace.work.mkdir(exist_ok=True)
    pin = {"repo_id": repo.repo_id, "commit": repo.commit}
    replace_small(workspace.work / PIN_NAME, json.dumps(pin).encode())
    return fetch_headers(repo, workspace.work / HEADERS_NAME)


def _write(
    plan: ContainerPlan,
    repo: HubRepo,
    workspace: Workspace,
    progress: Progress | None,
    *,
    keep_checkpoint: bool,
) -> None:
    kept = checkpoint_path(workspace.output)
    is_kept = keep_checkpoint or kept.exists()
    order = begin_by_shard(plan, workspace)
    if is_kept:
        order = [header.path.name for header in plan.checkpoint.headers]
    directory = kept if is_kept else workspace.work / SHARDS_NAME
    supply = HubShards(repo, plan.checkpoint, directory, is_kept=is_kept)
    _check_room(plan, workspace, supply, order)
    supply.begin(order, progress)
    plan.checkpoint.payload = directory
    write_by_shard(plan, workspace, supply, order, progress)
    if is_kept:
        supply.keep_companions()
    workspace.finish(plan.manifest(workspace.finished).to_json())


class HubShards:
    """Shards that are downloaded to a directory, and deleted after their use unless they are kept."""

    def __init__(
        self, repo: HubRepo, checkpoint: Checkpoint, directory: Path, *, is_kept: bool
    ) -> None:
        self._repo = repo
        self._headers = {header.path.name: header for header in checkpoint.headers}
        self._companions = checkpoint.path
        self.is_kept = is_kept
        self._stop = threading.Event()
        self._progress: Progress | None = None
        self._total = 0
        self._done = 0
        self.directory = directory

    def begin(self, order: list[str], progress: Progress | None) -> None:
        """Makes the directory, and removes what an earlier run left there and nobody needs."""
        self._progress = progress
        self._total = sum(self._repo.get(name).nbytes for name in order)
        with storage_errors(self.directory, 0, "create"):
            self.directory.mkdir(exist_ok=True)
            for path in self.directory.iterdir():
                if not self.is_kept and path.name not in order:
                    path.unlink()

    def present_bytes(self, shard: str) -> int:
        """Bytes of a shard that are here."""
        path = self.directory / shard
        return path.stat().st_size if path.exists() else 0

    def fetch(self, shard: str) -> Path:
        """Downloads the shard, or what is missing of it, and checks all of it. Raises as `download`."""
        file = self._repo.get(shard)
        path = download(self._repo, file, self.directory / shard, self._report, self._stop)
        self._done += file.nbytes
        header, known = read_header(path), self._headers[shard]
        if (header.sha256, header.file_bytes) != (known.sha256, known.file_bytes):
            path.unlink()
            raise CheckpointError(
                f"{self._repo}: {shard}: the header is not the one that the hub sent before; try again"
            )
        return path

    def release(self, shard: str) -> None:
        """Deletes the shard unless it is kept."""
        if not self.is_kept:
            (self.directory / shard).unlink(missing_ok=True)

    def stop(self) -> None:
        """Makes a download that is under way end at its next bytes."""
        self._stop.set()

    def keep_companions(self) -> None:
        """Copies the small files, which make the shards a checkpoint."""
        for name in (*COMPANION_NAMES, INDEX_NAME):
            if (self._companions / name).exists():
                with storage_errors(self.directory / name, 0, "write"):
                    shutil.copyfile(self._companions / name, self.directory / name)

    def _report(self, nbytes: int) -> None:
        if self._progress is not None:
            self._progress("download", self._done + nbytes, self._total)


def _check_room(
    plan: ContainerPlan, workspace: Workspace, supply: HubShards, order: list[str]
) -> None:
    """Raises BudgetError if the container and what is downloaded beside it do not fit."""
    container = max(0, sum(plan.file_bytes.values()) - workspace.used_bytes())
    sizes = {header.path.name: header.file_bytes for header in plan.checkpoint.headers}
    if supply.is_kept:
        shards, what = sum(sizes[name] for name in order), "the checkpoint"
    else:
        largest = sorted((sizes[name] for name in order), reverse=True)[:SHARDS_AT_ONCE]
        shards, what = sum(largest), f"{len(largest)} shards"
    shards = max(0, shards - sum(supply.present_bytes(name) for name in order))
    check_space(
        workspace.output,
        container + shards,
        f" ({format_bytes(container)} for the container, {format_bytes(shards)} for {what})",
    )


def _check_complete(repo: HubRepo, recipe: Recipe, workspace: Workspace) -> None:
    """Raises ConfigError if the finished container was not made from that commit."""
    with (
        TemporaryDirectory() as directory,
        Checkpoint.open(fetch_headers(repo, Path(directory))) as checkpoint,
    ):
        check_same(plan_container(checkpoint, recipe), workspace)
    workspace.clean()


def _read_pin(workspace: Workspace, repo_id: str) -> str | None:
    """The commit that an earlier run began with."""
    path = workspace.work / PIN_NAME
    if workspace.is_complete or not path.exists():
        return None
    pin = read_json_object(path, MAX_PIN_BYTES, ContainerError)
    if pin.get("repo_id") != repo_id:
        raise ConfigError(
            f"{workspace.output}: holds an unfinished container of another model; remove it or choose another directory"
        )
    commit = pin.get("commit")
    if not isinstance(commit, str) or not re.fullmatch("[0-9a-f]{40}", commit):
        raise ContainerError(f"{path}: damaged; remove {workspace.output} and prepare again")
    return commit
