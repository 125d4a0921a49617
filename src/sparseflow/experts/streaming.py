"""Experts leased from a bounded cache, which reads them from storage when a layer asks for what it does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparseflow.errors import ConfigError
from sparseflow.experts.store import ExpertStats, ExpertStore
from sparseflow.native import _ext


class StreamingStore(ExpertStore):
    """Holds at most `capacity_bytes` of experts, reads in flight included."""

    kind = "streaming"

    def __init__(
        self,
        runtime: _ext.Runtime,
        paths: Sequence[Path],
        *,
        capacity_bytes: int,
        num_experts_per_tok: int,
        policy: str = "scored",
        queue_depth: int = 4,
        direct_io: bool = True,
        engine: str | _ext.ReadEngine = "pread",
    ) -> None:
        """paths: one .sfi file per layer. An `engine` object has its own queue depth and kind of I/O.

        Raises BudgetError if not even two experts fit, ConfigError for an unknown policy or engine, ContainerError,
        UnsupportedError or StorageError for the files.
        """
        super().__init__(runtime)
        self._capacity_bytes = capacity_bytes
        self._source: _ext.StreamingSource | None = _ext.StreamingSource(
            [str(path) for path in paths],
            capacity_bytes,
            num_experts_per_tok,
            policy,
            queue_depth,
            direct_io,
            engine,
        )
        self._last = self._read_stats(self._source)

    @property
    def source(self) -> _ext.StreamingSource:
        if self._source is None:
            raise ConfigError("the expert store is closed")
        return self._source

    def export_heat(self) -> NDArray[np.float32]:
        """What was chosen how often and when, [num_layers, num_experts, 2]; for import_heat of the same policy."""
        return self.source.export_heat()

    def import_heat(self, heat: NDArray[np.float32]) -> None:
        """Goes on with the history of an earlier run. Changes what is evicted, never an output."""
        self.source.import_heat(heat)

    def stats(self) -> ExpertStats:
        if self._source is not None:
            self._last = self._read_stats(self._source)
        return self._last

    @property
    def active_leases(self) -> int:
        return 0 if self._source is None else self._source.active_leases

    def close(self) -> None:
        self.stats()
        self._is_closed, self._source = True, None

    def _read_stats(self, source: _ext.StreamingSource) -> ExpertStats:
        counters = source.counters
        return ExpertStats(
            hits=counters.hits,
            misses=counters.misses,
            evictions=counters.evictions,
            reads=counters.reads,
            failed_reads=counters.failed_reads,
            bytes_read=counters.bytes_read,
            read_wait_seconds=counters.read_wait_seconds,
            read_busy_seconds=counters.read_busy_seconds,
            direct_io=source.is_direct,
            capacity_slots=source.capacity_slots,
            capacity_bytes=self._capacity_bytes,
            resident_bytes=source.arena_bytes,
        )
