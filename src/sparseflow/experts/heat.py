"""The memory of earlier runs: which experts of a container were chosen how often, in one small file for each container.

It decides what is read before anyone asks, never an output; so a file that is missing, damaged or not writable is a
sentence in the statistics and nothing more.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparseflow.experts.store import ExpertStore
from sparseflow.experts.streaming import StreamingStore
from sparseflow.native import _ext

MAGIC = b"SFHEAT1\n"
HEADER = struct.Struct("<8s2IQ")  # magic, layers, experts, XXH3-64 of the values
POLICY = "scored"
"""The policy whose history is kept: it ranks experts that the cache does not hold."""

Heat = NDArray[np.float32]  # [num_layers, num_experts, 2]


class HeatFile:
    """The file of one container, and the store that goes on with it."""

    def __init__(self, directory: Path, manifest: bytes, store: StreamingStore) -> None:
        """manifest: the bytes of the container's manifest, which name its contents."""
        self.path = heat_path(directory, manifest)
        self._store = store
        self.warnings: list[str] = []

    def preload(self) -> None:
        """Goes on with what was saved, and begins to read the hottest experts in the background."""
        source = self._store.source
        try:
            heat = read_heat(self.path, (source.num_layers, source.num_experts))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._warn("not used", error)
            return
        self._store.import_heat(heat)
        source.preload()

    def save(self) -> None:
        """Writes the history of this run and those before it."""
        try:
            write_heat(self.path, self._store.export_heat())
        except OSError as error:
            self._warn("not written", error)

    def _warn(self, what: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self.warnings.append(f"heat table {self.path} {what}: {reason}")


def heat_path(directory: Path, manifest: bytes) -> Path:
    """Where the heat of the container with this manifest lies."""
    return directory / f"{hashlib.sha256(manifest).hexdigest()}.heat"


def open_heat_file(
    directory: Path | None, container: Path, policy: str, store: ExpertStore
) -> HeatFile | None:
    """The heat file of a container, if there is a place for it and a cache that can use it."""
    if directory is None or policy != POLICY or not isinstance(store, StreamingStore):
        return None
    return HeatFile(directory, (container / "manifest.json").read_bytes(), store)


def read_heat(path: Path, shape: tuple[int, int]) -> Heat:
    """The table [*shape, 2]. Raises OSError, or ValueError naming what is wrong with the file."""
    nbytes = 8 * shape[0] * shape[1]
    with path.open("rb") as file:
        found = os.fstat(file.fileno()).st_size
        if found != HEADER.size + nbytes:
            raise ValueError(f"{found} bytes instead of {HEADER.size + nbytes}")
        magic, layers, experts, checksum = HEADER.unpack(file.read(HEADER.size))
        values = file.read(nbytes)
    if magic != MAGIC or (layers, experts) != shape:
        raise ValueError("it is not the heat table of such a model")
    if len(values) != nbytes or _ext.xxh3_64(values) != checksum:
        raise ValueError("its checksum differs")
    heat = np.frombuffer(values, dtype="<f4").astype(np.float32).reshape(*shape, 2)
    if not np.isfinite(heat).all() or (heat < 0).any():
        raise ValueError("it holds values that are not finite or negative")
    return heat


def write_heat(path: Path, heat: Heat) -> None:
    """Replaces the file in one step: a reader sees the old table or the new one. Raises OSError."""
    values = np.ascontiguousarray(heat, dtype="<f4").tobytes()
    header = HEADER.pack(MAGIC, heat.shape[0], heat.shape[1], _ext.xxh3_64(values))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(header + values)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
