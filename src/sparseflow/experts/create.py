"""Makes the expert store of a given kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sparseflow.config import EngineConfig
from sparseflow.errors import ConfigError
from sparseflow.experts.resident import ResidentStore
from sparseflow.experts.store import ExpertStore
from sparseflow.experts.streaming import StreamingStore
from sparseflow.native import _ext


def create_store(
    runtime: _ext.Runtime,
    paths: Sequence[Path],
    config: EngineConfig,
    num_experts_per_tok: int,
    *,
    engine: _ext.ReadEngine | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> ExpertStore:
    """The store that `config.store` names, over one .sfi file per layer.

    `auto` is streaming if `cache_bytes` is given and does not hold all experts, else resident. `streaming` without
    `cache_bytes` may hold them all. engine: None: what `config.io` names. Raises what the store raises; ConfigError
    names the known kinds.
    """
    num_bytes = sum(path.stat().st_size for path in paths if path.exists())
    capacity_bytes = num_bytes if config.cache_bytes is None else config.cache_bytes
    kind = config.store
    if kind == "auto":
        kind = "streaming" if capacity_bytes < num_bytes else "resident"
    if kind == "resident":
        return ResidentStore(
            runtime,
            paths,
            queue_depth=config.queue_depth,
            direct_io=config.direct_io,
            engine=engine or config.io,
            progress=progress,
        )
    if kind == "streaming":
        return StreamingStore(
            runtime,
            paths,
            capacity_bytes=capacity_bytes,
            num_experts_per_tok=num_experts_per_tok,
            policy=config.policy,
            queue_depth=config.queue_depth,
            direct_io=config.direct_io,
            engine=engine or config.io,
        )
    raise ConfigError(f"store: unknown {kind!r}; known: resident, streaming")
