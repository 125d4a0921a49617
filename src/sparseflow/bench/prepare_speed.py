"""How fast `prepare` is, against the disk that it reads from and writes to, and how much memory it takes."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sparseflow.bench.cell import start
from sparseflow.bench.cold import drop_pages
from sparseflow.errors import ConfigError, StorageError
from sparseflow.native import _ext

BLOCK = 4 << 20
READ_BYTES = 1 << 30
WRITE_BYTES = 1 << 30
QUEUE_DEPTH = 4


@dataclass(frozen=True, slots=True)
class PrepareRun:
    """One `prepare` into an empty directory beside the checkpoint, whose pages were dropped before."""

    seconds: float
    checkpoint_bytes: int
    peak_bytes: int
    read_speed: float
    write_speed: float

    @property
    def speed(self) -> float:
        """Checkpoint bytes a second."""
        return self.checkpoint_bytes / self.seconds

    @property
    def share(self) -> float:
        """Of the slower of reading and writing."""
        return self.speed / min(self.read_speed, self.write_speed)


def share(checkpoint: Path | None, recipe: str) -> tuple[float, str]:
    """(throughput over the disk's, in words). Raises ConfigError without a checkpoint."""
    run = measure_prepare(_given(checkpoint), recipe)
    disk = f"disk {run.read_speed / 1e9:.2f} read, {run.write_speed / 1e9:.2f} write"
    return run.share, f"{run.speed / 1e9:.2f} GB/s of the checkpoint; {disk}"


def peak(checkpoint: Path | None, recipe: str) -> tuple[float, str]:
    """(bytes, in words). Raises ConfigError without a checkpoint."""
    return float(measure_prepare(_given(checkpoint), recipe).peak_bytes), f"recipe {recipe}"


@cache
def measure_prepare(checkpoint: Path, recipe: str) -> PrepareRun:
    """Takes as long as `prepare`. Raises what it raises."""
    shards = sorted(checkpoint.glob("*.safetensors"))
    if not shards:
        raise ConfigError(f"{checkpoint}: no safetensors files; give a checkpoint")
    with tempfile.TemporaryDirectory(prefix=".sparseflow-bench-", dir=checkpoint.parent) as place:
        read_speed = probe_read(shards)
        write_speed = probe_write(Path(place) / "probe.bin", WRITE_BYTES)
        drop_pages(shards)
        command = [
            sys.executable, "-m", "sparseflow.cli.main", "prepare", str(checkpoint),
            "--output", str(Path(place) / "container"), "--recipe", recipe, "--quiet",
        ]  # fmt: skip
        begin = time.monotonic()
        watch: dict[str, Any] = start(command, Path(place), None)
        seconds = time.monotonic() - begin
    total = sum(shard.stat().st_size for shard in shards)
    return PrepareRun(seconds, total, watch["peak_bytes"], read_speed, write_speed)


def probe_read(files: list[Path]) -> float:
    """Bytes a second of large reads in order, past the page cache."""
    blocks = [
        (number, offset)
        for number, file in enumerate(files)
        for offset in range(0, file.stat().st_size - BLOCK + 1, BLOCK)
    ][: READ_BYTES // BLOCK]
    if not blocks:
        raise ConfigError(f"{files[0]}: too small to measure a disk with")
    engine = _ext.create_read_engine("auto", QUEUE_DEPTH, True)
    seconds = _ext.time_reads(engine, [str(file) for file in files], blocks, BLOCK)
    return len(blocks) * BLOCK / seconds


def probe_write(path: Path, nbytes: int) -> float:
    """Bytes a second of large writes in order, until they are on the disk; the file is removed again."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:  # a filesystem without direct I/O
        path.unlink(missing_ok=True)
        descriptor = os.open(path, flags, 0o600)
    try:
        with mmap.mmap(-1, BLOCK) as block:
            begin = time.monotonic()
            for _ in range(max(1, nbytes // BLOCK)):
                os.write(descriptor, block)
            os.fsync(descriptor)
            return max(1, nbytes // BLOCK) * BLOCK / (time.monotonic() - begin)
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror}", path=str(path), errno=error.errno
        ) from error
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _given(checkpoint: Path | None) -> Path:
    if checkpoint is None:
        raise ConfigError("no checkpoint: suite setting `checkpoint`")
    return checkpoint
