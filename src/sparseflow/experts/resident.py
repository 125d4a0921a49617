"""All experts in anonymous memory, read and checked layer by layer when the store is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sparseflow.experts.store import ExpertStore, Source, StoreSize
from sparseflow.native import _ext


class ResidentStore(ExpertStore):
    """Reads everything when it is made; a KeyboardInterrupt between two layers ends that."""

    kind = "resident"

    def __init__(
        self,
        runtime: _ext.Runtime,
        paths: Sequence[Path],
        *,
        queue_depth: int = 8,
        direct_io: bool = True,
        engine: str | _ext.ReadEngine = "pread",
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        """paths: one .sfi file per layer. progress("experts", layers read, layers).

        Raises ContainerError, UnsupportedError, StorageError, or BudgetError if the memory is refused.
        """
        names = [str(path) for path in paths]
        source = _ext.ResidentSource(names, queue_depth, direct_io, engine)
        for layer in range(source.num_layers):
            if progress is not None:
                progress("experts", layer, source.num_layers)
            source.load_layer(layer)
        if progress is not None:
            progress("experts", source.num_layers, source.num_layers)
        super().__init__(runtime, source)

    def _measure(self, source: Source) -> StoreSize:
        assert isinstance(source, _ext.ResidentSource)
        held = source.resident_bytes
        return StoreSize(source.num_layers * source.num_experts, held, held, held)
