"""Writes that are whole, or say what the disk refused, and that last once they are synced."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

from sparseflow.checkpoint.checkpoint import storage_errors
from sparseflow.errors import StorageError

HASH_BLOCK_BYTES = 4 << 20


def pwrite_full(descriptor: int, data: memoryview, offset: int, path: Path) -> None:
    """Writes all of `data` (bytes) at `offset`. Raises StorageError; if the disk is full, with the
    bytes that were missing.
    """
    done = 0
    while done < len(data):
        try:
            done += os.pwrite(descriptor, data[done:], offset + done)
        except OSError as problem:
            missing = (
                f"; {len(data) - done} more bytes were to be written here"
                if problem.errno == errno.ENOSPC
                else ""
            )
            raise StorageError(
                f"{path}: cannot write at byte {offset + done}: {problem.strerror}{missing}",
                path=str(path),
                offset=offset + done,
                errno=problem.errno,
            ) from None


def sync(descriptor: int, path: Path) -> None:
    """Makes what was written to a file durable. Raises StorageError."""
    with storage_errors(path, 0, "sync"):
        os.fsync(descriptor)


def hash_file(descriptor: int, path: Path) -> str:
    """SHA-256 of a file, in hexadecimal. Raises StorageError."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(HASH_BLOCK_BYTES))
    offset = 0
    while True:
        with storage_errors(path, offset, "read"):
            count = os.preadv(descriptor, [buffer], offset)
        if count == 0:
            return digest.hexdigest()
        digest.update(buffer[:count])
        offset += count


def replace_small(path: Path, data: bytes) -> None:
    """Writes a small file whole or not at all, by renaming `NAME.new`. Raises StorageError."""
    part = path.with_name(path.name + ".new")
    with storage_errors(part, 0, "write"), part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    with storage_errors(part, 0, "rename"):
        part.rename(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes names in a directory durable, where the filesystem can. Raises StorageError."""
    if not directory.exists():
        return
    with storage_errors(directory, 0, "sync"):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as problem:
            if problem.errno not in (
                errno.EINVAL,
                errno.ENOTSUP,
            ):  # not every filesystem syncs directories
                raise
        finally:
            os.close(descriptor)
