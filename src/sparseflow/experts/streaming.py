"""Experts leased from a bounded cache, which reads them from storage when a layer asks for what it does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparseflow.experts.store import ExpertStore, Source, StoreSize
from sparseflow.native import _ext


class StreamingStore(ExpertStore):
    """Holds at most `capacity_bytes` of experts, reads in flight included; less where `resize` said so."""

    kind = "streaming"

    def __init__(
        self,
        runtime: _ext.Runtime,
        paths: Sequence[Path],
        *,
        capacity_bytes: int,
        num_experts_per_tok: int,
        policy: str = "scored",
        queue_depth: int = 8,
        direct_io: bool = True,
        engine: str | _ext.ReadEngine = "pread",
    ) -> None:
        """paths: one .sfi file per layer. An `engine` object has its own queue depth and kind of I/O.

        Raises BudgetError if not even two experts fit, ConfigError for an unknown policy or engine, ContainerError,
        UnsupportedError or StorageError for the files.
        """
        self._capacity_bytes = capacity_bytes
        source = _ext.StreamingSource(
            [str(path) for path in paths],
            capacity_bytes,
            num_experts_per_tok,
            policy,
            queue_depth,
            direct_io,
            engine,
        )
        super().__init__(runtime, source)

    @property
    def source(self) -> _ext.StreamingSource:
        """The cache. Raises ConfigError once closed."""
        source = super().source
        assert isinstance(source, _ext.StreamingSource)
        return source

    def resize(self, capacity_bytes: int) -> int:
        """Holds at most so many bytes from now on, by whole segments of the arena; returns what is allowed then.

        At least two experts, at most what the store was opened with. Memory that is not allowed any more is given back
        to the system at once, but for experts that are leased or being read: they follow when they are done. From any
        thread, also while a layer computes; changes what is read, never an output.
        """
        return self.source.resize(capacity_bytes)

    @property
    def arena(self) -> _ext.ArenaUse:
        """How much memory is allowed, held and written to."""
        return self.source.arena_use

    def export_heat(self) -> NDArray[np.float32]:
        """What was chosen how often and when, [num_layers, num_experts, 2]; for import_heat of the same policy."""
        return self.source.export_heat()

    def import_heat(self, heat: NDArray[np.float32]) -> None:
        """Goes on with the history of an earlier run. Changes what is evicted, never an output."""
        self.source.import_heat(heat)

    def _layer_reads(self, source: Source) -> tuple[int, ...]:
        assert isinstance(source, _ext.StreamingSource)
        return tuple(source.layer_reads)

    def _measure(self, source: Source) -> StoreSize:
        assert isinstance(source, _ext.StreamingSource)
        arena = source.arena_use
        slots = arena.full // source.blob_bytes
        return StoreSize(slots, self._capacity_bytes, arena.held, arena.least)
