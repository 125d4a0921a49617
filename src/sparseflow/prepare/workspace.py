"""An unfinished container: one writer at a time, a journal of finished files, temporary files in
one hidden directory.

The journal is `.prepare/journal.json`. A file is written as `.prepare/NAME`, synced, entered in the
journal and only then renamed to its place, so that a file in its place is always in the journal and
never has to be made or read again. Where a checkpoint comes shard by shard, the journal also names
the shards that are in the temporary files, which then stay from run to run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparseflow.checkpoint.checkpoint import pread_full, storage_errors
from sparseflow.checkpoint.json_file import read_json_object
from sparseflow.container.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    FileRecord,
)
from sparseflow.container.writer import Read, Write
from sparseflow.errors import ConfigError, ContainerError, StorageError
from sparseflow.prepare.durable import hash_file, pwrite_full, replace_small, sync, sync_directory

WORK_NAME = ".prepare"
JOURNAL_NAME = "journal.json"


class Workspace:
    """REQUIRES: made by `open_workspace`, which holds the lock on the directory."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.work = output / WORK_NAME
        self.identity: dict[str, Any] = {}
        self.sizes: Mapping[str, int] = {}
        self.finished: dict[str, FileRecord] = {}
        self.shards: set[str] = set()
        """Shards whose part of every unfinished file is in its temporary file, durably."""
        self.is_complete = (output / MANIFEST_NAME).exists()
        self.is_fresh = not (self.work / JOURNAL_NAME).exists()

    def check_empty(self) -> None:
        """Raises ConfigError if the directory holds something else than what an earlier run began."""
        others = [entry.name for entry in self.output.iterdir() if entry.name != WORK_NAME]
        if self.is_fresh and others:
            raise ConfigError(
                f"{self.output}: not empty ({others[0]}); choose another directory for the container"
            )

    def begin(
        self, identity: dict[str, Any], sizes: Mapping[str, int], *, by_shard: bool = False
    ) -> None:
        """Takes up an earlier run of the same source and recipe, or begins. `sizes`: the files to be made.

        If `by_shard`, temporary files stay as they were left, with what the journal says of shards. Raises ConfigError
        if the directory holds anything else.
        """
        self.identity, self.sizes = identity, sizes
        self.check_empty()
        if self.is_fresh:
            with storage_errors(self.work, 0, "create"):
                self.work.mkdir(exist_ok=True)
            self._write_journal()
            return
        self._read_journal()
        if by_shard:
            return
        self.forget_shards(self.shards)
        for path in self.work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != JOURNAL_NAME:
                path.unlink()

    def write(self, name: str, nbytes: int, produce: Callable[[Write], None]) -> None:
        """Makes the temporary file of `name`, of that size, from what `produce` writes.

        Raises StorageError if the disk refuses, and what `produce` raises; then no part of the file stays.
        """
        part = self._part(name)
        try:
            with storage_errors(part, 0, "create"):
                descriptor = os.open(
                    part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
                )
            try:
                produce(lambda data, offset: pwrite_full(descriptor, data, offset, part))
                found = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
            if found != nbytes:
                raise StorageError(f"{part}: {found} bytes written, not {nbytes}", path=str(part))
        except Exception:
            part.unlink(missing_ok=True)
            raise

    def settle(self, name: str) -> None:
        """Makes a written file durable, enters it in the journal and moves it to its place.

        From one thread at a time, which may be another than the one that writes the next file. Raises StorageError.
        """
        part = self._part(name)
        with storage_errors(part, 0, "open"):
            descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="sync") as pool:
                synced = pool.submit(sync, descriptor, part)
                record = FileRecord(os.fstat(descriptor).st_size, hash_file(descriptor, part))
                synced.result()
        finally:
            os.close(descriptor)
        self.finished[name] = record
        self._write_journal()
        self._move(part, name)

    def write_part(self, name: str, produce: Callable[[Write, Read], None]) -> None:
        """Lets `produce` write some of the temporary file of `name`, and read what is there: what was written before,
        and zeros. Durable when this returns.

        Raises StorageError if the disk refuses, and what `produce` raises; the file stays.
        """
        part = self._part(name)
        with storage_errors(part, 0, "create"):
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with storage_errors(part, 0, "size"):
                os.ftruncate(descriptor, self.sizes[name])
            produce(
                lambda data, offset: pwrite_full(descriptor, data, offset, part),
                lambda buffer, offset: pread_full(descriptor, buffer, offset, part),
            )
            sync(descriptor, part)
        finally:
            os.close(descriptor)

    def has_part(self, name: str) -> bool:
        """Whether `write_part` has begun with a file."""
        part = self._part(name)
        return part.exists() and part.stat().st_size == self.sizes[name]

    def finish_shard(self, shard: str) -> None:
        """Enters in the journal that a shard is in the temporary files. Raises StorageError."""
        self.shards.add(shard)
        self._write_journal()

    def forget_shards(self, shards: set[str]) -> None:
        """Takes shards out of the journal. Raises StorageError."""
        if self.shards & shards:
            self.shards -= shards
            self._write_journal()

    def used_bytes(self) -> int:
        """Bytes that files of the container take on the disk now, holes not counted."""
        paths = [
            self.output / name if name in self.finished else self._part(name) for name in self.sizes
        ]
        return sum(path.stat().st_blocks * 512 for path in paths if path.exists())

    def drop_parts(self) -> None:
        """Removes temporary files that are not in the journal."""
        for name in self.sizes.keys() - self.finished.keys():
            self._part(name).unlink(missing_ok=True)

    def finish(self, manifest: bytes) -> None:
        """Writes the manifest, which makes the directory a container, and removes what only an
        unfinished one needs.
        """
        part = self.work / MANIFEST_NAME
        replace_small(part, manifest)
        self._move(part, MANIFEST_NAME)
        self.clean()

    def clean(self) -> None:
        """Removes journal and temporary files of a complete container."""
        shutil.rmtree(self.work, ignore_errors=True)
        sync_directory(self.output)

    def discard(self) -> None:
        """Removes everything that a fresh run made."""
        for name in self.finished:
            (self.output / name).unlink(missing_ok=True)
        shutil.rmtree(self.work, ignore_errors=True)
        for directory in sorted(
            {(self.output / name).parent for name in self.finished} - {self.output}
        ):
            with contextlib.suppress(OSError):
                directory.rmdir()

    def _part(self, name: str) -> Path:
        return self.work / name.replace("/", "-")

    def _move(self, part: Path, name: str) -> None:
        target = self.output / name
        with storage_errors(target, 0, "create"):
            target.parent.mkdir(exist_ok=True)
            part.rename(target)
        for directory in {target.parent, self.output, self.work}:
            sync_directory(directory)

    def _write_journal(self) -> None:
        files = {name: [record.nbytes, record.sha256] for name, record in self.finished.items()}
        journal = {"identity": self.identity, "files": files, "shards": sorted(self.shards)}
        replace_small(self.work / JOURNAL_NAME, json.dumps(journal).encode())

    def _read_journal(self) -> None:
        path = self.work / JOURNAL_NAME
        journal = read_json_object(path, MAX_MANIFEST_BYTES, ContainerError)
        if journal.get("identity") != self.identity:
            raise ConfigError(
                f"{self.output}: holds an unfinished container of another checkpoint or recipe;"
                " remove it or choose another"
                " directory"
            )
        try:
            records = {
                name: FileRecord(int(nbytes), str(sha))
                for name, (nbytes, sha) in journal["files"].items()
            }
            self.shards = {str(shard) for shard in journal.get("shards", [])}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ContainerError(
                f"{path}: damaged; remove {self.output} and prepare again"
            ) from None
        if any(self.sizes.get(name) != record.nbytes for name, record in records.items()):
            raise ContainerError(f"{path}: damaged; remove {self.output} and prepare again")
        for name, record in records.items():
            part, target = self._part(name), self.output / name
            if not target.exists() and part.exists() and part.stat().st_size == record.nbytes:
                self._move(part, name)
            if target.exists() and target.stat().st_size == record.nbytes:
                self.finished[name] = record


@contextmanager
def open_workspace(output: Path, *, wait: bool) -> Iterator[Workspace]:
    """Creates `output` if need be and holds an exclusive lock on it.

    Another writer at work is waited for if `wait`, else it is a StorageError. A directory made here
    that is empty at the end is removed.
    """
    is_new = not output.exists()
    with storage_errors(output, 0, "create"):
        output.mkdir(parents=True, exist_ok=True)
    descriptor = _lock(output, wait)
    try:
        yield Workspace(output)
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                output.rmdir()
        os.close(descriptor)


def _lock(output: Path, wait: bool) -> int:
    while True:
        with storage_errors(output, 0, "open"):
            descriptor = os.open(output, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            raise StorageError(
                f"{output}: another process is preparing this container; wait for it to end",
                path=str(output),
                errno=errno.EWOULDBLOCK,
            ) from None
        # The writer that was waited for may have removed the directory.
        if output.exists() and os.path.samestat(os.fstat(descriptor), output.stat()):
            return descriptor
        os.close(descriptor)
        with storage_errors(output, 0, "create"):
            output.mkdir(parents=True, exist_ok=True)
