"""What a layer needs of the experts, whatever holds them: one call that computes, and what it cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sparseflow.config import StoreKind
from sparseflow.errors import ConfigError
from sparseflow.native import _ext


@dataclass(frozen=True, slots=True)
class ExpertStats:
    """Counters since the store was opened, and its size."""

    hits: int
    """Experts that were in memory, or on their way, when a layer asked for them."""
    misses: int
    evictions: int
    reads: int
    failed_reads: int
    bytes_read: int
    """From storage, loading included."""
    read_wait_seconds: float
    """Computation stood still for a read."""
    wait_cpu_seconds: float
    """CPU time of the whole process meanwhile: other threads, and what waiting itself costs."""
    read_busy_seconds: float
    """At least one read was under way."""
    read_flight_seconds: float
    """Sum over all reads of the time that each was under way; over `read_busy_seconds`, the mean queue depth."""
    preloaded: int
    """Experts read before anyone asked, because earlier runs chose them often."""
    ahead_reads: int
    """Reads begun because a layer would probably ask."""
    ahead_hits: int
    """Of them, those that were asked for."""
    layer_reads: tuple[int, ...]
    """Reads that ended, by layer; of a streaming store only."""
    io: str
    """The engine that reads: `pread` or `io_uring`."""
    direct_io: bool
    """Every file is read past the page cache."""
    capacity_slots: int
    """Experts that fit into memory."""
    capacity_bytes: int
    resident_bytes: int
    """Anonymous memory held for experts now, whether or not it has been written to."""
    least_bytes: int
    """The least of it that was allowed since the store was opened."""
    shrinks: int
    """How often it was lowered for others who needed the memory."""
    grows: int

    @property
    def hit_rate(self) -> float:
        """Share of lookups that did not read, 0 to 1; 0 before the first."""
        return _ratio(self.hits, self.hits + self.misses)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


RouteObserver = Callable[[int, NDArray[np.int32]], None]
"""Is told (layer, ids [T, k]) before a layer computes; keeps the array, changes nothing."""

Source = _ext.ResidentSource | _ext.StreamingSource


@dataclass(frozen=True, slots=True)
class StoreSize:
    """Fields of ExpertStats; the last two change where a store can shrink."""

    capacity_slots: int
    capacity_bytes: int
    resident_bytes: int
    least_bytes: int


class ExpertStore(ABC):
    """The routed experts of all layers. One thread at a time computes; a context manager."""

    kind: StoreKind
    """`resident` or `streaming`."""

    def __init__(self, runtime: _ext.Runtime, source: Source) -> None:
        self.observer: RouteObserver | None = None
        """Set by those who count what the routers choose; None: nobody."""
        self._runtime = runtime
        self._source: Source | None = source
        self._last = self._read_stats(source)

    def compute(
        self,
        layer: int,
        x: NDArray[np.float32],
        topk_ids: NDArray[np.int32],
        topk_weights: NDArray[np.float32],
        shared: _ext.SharedExpert | None,
        residual: NDArray[np.float32],
        ahead: _ext.LookAhead | None = None,
    ) -> None:
        """One MoE layer: x [T, H], ids and weights [T, k] with ids ascending in each row; residual [T, H] += the sum.

        ahead: guess from the residual what the next layer will choose, so that it may be read meanwhile.
        Raises StorageError or ContainerError if an expert cannot be read; nothing stays leased, and a later call reads
        it again. The interpreter lock is released meanwhile.
        """
        if self.observer is not None:
            self.observer(layer, topk_ids)
        source = self.source
        chosen = (topk_ids, topk_weights)
        _ext.moe_forward(self._runtime, source, layer, x, *chosen, shared, residual, ahead)

    @property
    def source(self) -> Source:
        """The native side. Raises ConfigError once closed."""
        if self._source is None:
            raise ConfigError("the expert store is closed")
        return self._source

    @abstractmethod
    def _measure(self, source: Source) -> StoreSize:
        """Sizes of the open store now."""

    def stats(self) -> ExpertStats:
        """Also after close: then the last values."""
        if self._source is not None:
            self._last = self._read_stats(self._source)
        return self._last

    @property
    def active_leases(self) -> int:
        """0 between calls."""
        return 0 if self._source is None else self._source.active_leases

    def close(self) -> None:
        """Gives memory and files back. May be called twice."""
        self.stats()
        self._source = None

    def _read_stats(self, source: Source) -> ExpertStats:
        counters, size = source.counters, self._measure(source)
        return ExpertStats(
            hits=counters.hits,
            misses=counters.misses,
            evictions=counters.evictions,
            reads=counters.reads,
            failed_reads=counters.failed_reads,
            bytes_read=counters.bytes_read,
            read_wait_seconds=counters.read_wait_seconds,
            wait_cpu_seconds=counters.wait_cpu_seconds,
            read_busy_seconds=counters.read_busy_seconds,
            read_flight_seconds=counters.read_flight_seconds,
            preloaded=counters.preloaded,
            ahead_reads=counters.ahead_reads,
            ahead_hits=counters.ahead_hits,
            layer_reads=self._layer_reads(source),
            io=source.engine,
            direct_io=source.is_direct,
            capacity_slots=size.capacity_slots,
            capacity_bytes=size.capacity_bytes,
            resident_bytes=size.resident_bytes,
            least_bytes=size.least_bytes,
            shrinks=counters.shrinks,
            grows=counters.grows,
        )

    def _layer_reads(self, source: Source) -> tuple[int, ...]:  # noqa: ARG002 - see StreamingStore
        return ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
