"""All experts in anonymous memory, read and checked layer by layer when the store is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sparseflow.errors import ConfigError
from sparseflow.experts.store import ExpertStats, ExpertStore
from sparseflow.native import _ext


class ResidentStore(ExpertStore):
    """Reads everything when it is made; a KeyboardInterrupt between two layers ends that."""

    kind = "resident"

    def __init__(
        self,
        runtime: _ext.Runtime,
        paths: Sequence[Path],
        *,
        queue_depth: int = 4,
        direct_io: bool = True,
        engine: str | _ext.ReadEngine = "pread",
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        """paths: one .sfi file per layer. progress("experts", layers read, layers).

        Raises ContainerError, UnsupportedError, StorageError, or BudgetError if the memory is refused.
        """
        super().__init__(runtime)
        names = [str(path) for path in paths]
        source = _ext.ResidentSource(names, queue_depth, direct_io, engine)
        for layer in range(source.num_layers):
            if progress is not None:
                progress("experts", layer, source.num_layers)
            source.load_layer(layer)
        if progress is not None:
            progress("experts", source.num_layers, source.num_layers)
        self._source: _ext.ResidentSource | None = source
        self._last = self._read_stats(source)

    @property
    def source(self) -> _ext.ResidentSource:
        if self._source is None:
            raise ConfigError("the expert store is closed")
        return self._source

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

    @staticmethod
    def _read_stats(source: _ext.ResidentSource) -> ExpertStats:
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
            capacity_slots=source.num_layers * source.num_experts,
            capacity_bytes=source.resident_bytes,
            resident_bytes=source.resident_bytes,
        )
