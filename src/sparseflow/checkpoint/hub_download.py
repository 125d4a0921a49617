"""Single files from a hub, whole and checked, or a range of one."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from io import RawIOBase
from pathlib import Path

from sparseflow.checkpoint.checkpoint import storage_errors
from sparseflow.checkpoint.hub_repo import HubFile, HubRepo, refusal
from sparseflow.checkpoint.transfer import open_range, persist
from sparseflow.errors import CheckpointError

CHECKSUM_TRIES = 3
HASH_BLOCK_BYTES = 4 << 20


def download(
    repo: HubRepo,
    file: HubFile,
    path: Path,
    on_bytes: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> Path:
    """Fetches a file whole to `path`, going on after the bytes that are there, checks its hash and returns `path`.

    `on_bytes` is told the bytes that are there now; after a wrong hash that begins anew. Raises CheckpointError if the
    hash is wrong again and again, StorageError if the hub does not answer or the disk refuses, ConfigError if the file
    may not be read, CancelledError once `stop` is set.
    """
    for _ in range(CHECKSUM_TRIES):
        persist(
            f"{repo}: {file.name}",
            repo.patience,
            lambda: _append_rest(repo, file, path, on_bytes, stop),
            stop,
            lambda: _size(path),
        )
        problem = find_damage(file, path, stop)
        if problem is None:
            return path
        path.unlink()
    raise CheckpointError(
        f"{repo}: {file.name}: {problem}, {CHECKSUM_TRIES} times; the hub's copy or the way to it is damaged:"
        " try again later"
    )


def _append_rest(
    repo: HubRepo,
    file: HubFile,
    path: Path,
    on_bytes: Callable[[int], None] | None,
    stop: threading.Event | None,
) -> None:
    with storage_errors(path, 0, "open"):
        out = path.open("ab", buffering=0)
    with out:
        done = out.tell()
        if on_bytes is not None:
            on_bytes(done)
        if done >= file.nbytes:
            return
        with _open(repo, file, done, file.nbytes) as pieces:
            for piece in pieces:
                if stop is not None and stop.is_set():
                    raise CancelledError
                with storage_errors(path, done, "write"):
                    _write(out, piece)
                done += len(piece)
                if on_bytes is not None:
                    on_bytes(done)


def read_range(
    repo: HubRepo, file: HubFile, begin: int, end: int, stop: threading.Event | None = None
) -> bytes:
    """The bytes [begin, end) of a file, unchecked. Raises as `download`."""

    def attempt() -> bytes:
        with _open(repo, file, begin, end) as pieces:
            return b"".join(pieces)

    return persist(f"{repo}: {file.name}", repo.patience, attempt, stop)


def find_damage(file: HubFile, path: Path, stop: threading.Event | None = None) -> str | None:
    """In what the file at `path` differs from what the hub says of it, or None. Raises StorageError, and CancelledError
    once `stop` is set.
    """
    with storage_errors(path, 0, "read"), path.open("rb", buffering=0) as opened:
        nbytes = path.stat().st_size
        if nbytes != file.nbytes:
            return f"{nbytes} bytes, not {file.nbytes}"
        if file.sha256 is not None:
            name, digest, expected = "SHA-256", hashlib.sha256(), file.sha256
        elif file.git_sha1 is not None:
            name, expected = "git hash", file.git_sha1
            digest = hashlib.sha1(f"blob {nbytes}\0".encode(), usedforsecurity=False)
        else:
            return None
        buffer = memoryview(bytearray(HASH_BLOCK_BYTES))
        while count := opened.readinto(buffer):
            if stop is not None and stop.is_set():
                raise CancelledError
            digest.update(buffer[:count])
    found = digest.hexdigest()
    return None if found == expected else f"{name} is {found}, the hub says {expected}"


def _open(
    repo: HubRepo, file: HubFile, begin: int, end: int
) -> AbstractContextManager[Iterator[bytes]]:
    return open_range(
        repo.url(file.name),
        repo.headers,
        begin,
        end,
        lambda status: refusal(f"{repo}: {file.name}", status),
    )


def _write(out: RawIOBase, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[out.write(rest) :]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
