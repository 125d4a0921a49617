"""A model on a hub as a checkpoint without its payload, from little traffic: `open_hub`, then `fetch_headers`.

What arrives is judged by the same code as a checkpoint on disk.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sparseflow.checkpoint.checkpoint import storage_errors
from sparseflow.checkpoint.companions import COMPANION_NAMES, MAX_COMPANION_BYTES
from sparseflow.checkpoint.header import MAX_HEADER_BYTES
from sparseflow.checkpoint.hub_download import download, find_damage, read_range
from sparseflow.checkpoint.hub_repo import HubFile, HubRepo, open_hub
from sparseflow.checkpoint.index import (
    INDEX_NAME,
    MAX_INDEX_BYTES,
    SINGLE_NAME,
    read_shard_names,
)
from sparseflow.errors import CheckpointError

__all__ = ["HubFile", "HubRepo", "fetch_companions", "fetch_headers", "open_hub"]

FIRST_HEADER_BYTES = 64 << 10
"""Fetched of every shard at once; most headers are shorter."""
CONNECTIONS = 8
"""For headers, which are small."""


def fetch_headers(repo: HubRepo, directory: Path) -> Path:
    """Makes `directory` hold the checkpoint without its payload, and returns it: small files whole, and each shard with
    its header, its true size and a hole where the tensors would be. `Checkpoint.open` reads it.

    `directory` may hold what an earlier call for the same commit left; that is not fetched again. Raises
    CheckpointError for a repository without safetensors weights or wrong bytes, StorageError and ConfigError as
    `open_hub`.
    """
    fetch_companions(repo, directory)
    has_index = INDEX_NAME in repo.files
    names = read_shard_names(directory / INDEX_NAME) if has_index else [SINGLE_NAME]
    files = [repo.get(name) for name in names]
    stop = threading.Event()
    with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="headers") as pool:
        try:
            for done in [pool.submit(_fetch_header, repo, file, directory, stop) for file in files]:
                done.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return directory


def fetch_companions(repo: HubRepo, directory: Path) -> Path:
    """Makes `directory` hold config.json, tokenizer, chat template and the index of shards, and returns it. Raises as
    `fetch_headers`.
    """
    if not {INDEX_NAME, SINGLE_NAME} & repo.files.keys():
        raise CheckpointError(f"{repo}: neither {INDEX_NAME} nor {SINGLE_NAME}: no weights to read")
    with storage_errors(directory, 0, "create"):
        directory.mkdir(parents=True, exist_ok=True)
    for name in (*COMPANION_NAMES, INDEX_NAME):
        if name not in repo.files:
            continue
        file, limit = repo.get(name), MAX_INDEX_BYTES if name == INDEX_NAME else MAX_COMPANION_BYTES
        if file.nbytes > limit:
            raise CheckpointError(
                f"{repo}: {name} has {file.nbytes} bytes; at most {limit} are read"
            )
        target = directory / name
        if not target.exists() or find_damage(file, target) is not None:
            download(repo, file, directory / (name + ".part")).rename(target)
    return directory


def _fetch_header(repo: HubRepo, file: HubFile, directory: Path, stop: threading.Event) -> None:
    """Writes the shard with a hole for its payload. A length field that makes no sense is left to `read_header`."""
    target = directory / file.name
    if target.exists() and target.stat().st_size == file.nbytes:
        return
    first = min(file.nbytes, FIRST_HEADER_BYTES)
    raw = read_range(repo, file, 0, first, stop) if first else b""
    end = 8 + int.from_bytes(raw[:8], "little")
    if len(raw) < end <= min(file.nbytes, 8 + MAX_HEADER_BYTES):
        raw += read_range(repo, file, len(raw), end, stop)
    part = directory / (file.name + ".part")
    with storage_errors(part, 0, "write"), part.open("wb") as out:
        out.write(raw[:end])
        out.truncate(file.nbytes)
    part.rename(target)
