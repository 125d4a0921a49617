"""What this machine gives at this moment: memory read speed, int8 multiply-accumulates, disk read speed.

`plan` predicts from them, `bench` holds every pair of runs against them.
"""

from __future__ import annotations

import random
from pathlib import Path
from statistics import median

from sparseflow.container.reader import Container
from sparseflow.native import _ext

MEMORY_BYTES = 256 << 20
"""Several times the largest cache; small enough to take beside a model."""
MEMORY_PASSES = 15
DISK_BYTES = 768 << 20
INT8_SECONDS = 0.1


def memory_speed(runtime: _ext.Runtime, loop: str) -> float:
    """Bytes a second that all threads together read. loop: `read`, wide loads, or `dot`, every byte multiplied."""
    seconds = _ext.time_memory_passes(runtime, MEMORY_BYTES, loop, MEMORY_PASSES)
    return MEMORY_BYTES / median(seconds[1:])


def int8_rate(runtime: _ext.Runtime) -> float:
    """Multiply-accumulates a second from registers, all threads together."""
    return _ext.measure_int8_rate(runtime, INT8_SECONDS)


def expert_read_speed(
    container: Path, queue_depth: int, io: str = "auto", nbytes: int = DISK_BYTES
) -> tuple[float, int]:
    """(bytes a second, bytes of one read): whole experts at random, past the page cache, by the engine's own reader.

    Raises what opening a container raises, and StorageError if a file cannot be read.
    """
    with Container.open(container) as opened:
        layouts, paths = opened.layouts, opened.expert_files
    blob = layouts[0].blob_bytes
    every = [
        (file, layout.blob_offset(expert))
        for file, layout in enumerate(layouts)
        for expert in range(layout.num_experts)
    ]
    return _read_speed(paths, every, blob, queue_depth, io, nbytes), blob


def file_read_speed(
    path: Path, read_bytes: int, queue_depth: int, io: str = "auto", nbytes: int = DISK_BYTES
) -> float:
    """Bytes a second of reads of that size at random places of one file, past the page cache where that works.

    REQUIRES: the file has at least `read_bytes`, a multiple of 4 KiB. Raises StorageError.
    """
    count = path.stat().st_size // read_bytes
    every = [(0, i * read_bytes) for i in range(count)]
    return _read_speed([path], every, read_bytes, queue_depth, io, nbytes)


def _read_speed(
    paths: list[Path],
    every: list[tuple[int, int]],
    read_bytes: int,
    queue_depth: int,
    io: str,
    nbytes: int,
) -> float:
    count = max(1, min(len(every), nbytes // read_bytes))
    chosen = random.Random(0).sample(every, count)
    engine = _ext.create_read_engine(io, queue_depth, True)
    seconds = _ext.time_reads(engine, [str(path) for path in paths], chosen, read_bytes)
    return count * read_bytes / seconds


def quick_read_speeds(path: Path, read_bytes: int, queue_depth: int) -> tuple[float, float]:
    """(bytes a second at the queue depth, seconds that one read alone takes beyond that), in about two seconds.

    REQUIRES: the file has at least 32 times `read_bytes`, a multiple of 4 KiB. Raises StorageError.
    """
    rough = file_read_speed(path, read_bytes, queue_depth, nbytes=32 * read_bytes)
    nbytes = int(min(DISK_BYTES, max(64 * read_bytes, rough)))
    deep = file_read_speed(path, read_bytes, queue_depth, nbytes=nbytes)
    alone = file_read_speed(path, read_bytes, 1, nbytes=nbytes // 2)
    return deep, max(0.0, read_bytes / alone - read_bytes / deep)
