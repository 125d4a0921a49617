"""What a caller may choose, as frozen dataclasses that check themselves. Unknown names are refused by the dataclass."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparseflow.errors import ConfigError

StoreKind = Literal["auto", "resident", "streaming"]
PolicyKind = Literal["scored", "lru"]
IoKind = Literal["auto", "pread", "io_uring"]
ISA_NAMES = ("auto", "portable", "avx2", "avx2_vnni", "avx512_vnni")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine runs. Nothing in this class may change an output byte except `ctx` refusing what does not fit."""

    ram_bytes: int | None = None
    """Bound on the whole: dense weights, expert arena, state, workspace. None: what is available now, less a margin."""
    cache_bytes: int | None = None
    """Bound on the expert arena alone. None: what is left of `ram_bytes`."""
    store: StoreKind = "auto"
    policy: PolicyKind = "scored"
    ctx: int = 8192
    """Longest sequence, in tokens; the model's own maximum lowers it."""
    threads: int | None = None
    """Compute threads; None: physical cores within affinity and quota. Read threads are not counted."""
    isa: str = "auto"
    prefill_chunk: int | None = None
    """Prompt tokens that share one pass over the experts; None: the whole prompt, as far as the memory allows."""
    direct_io: bool = True
    """Read experts past the page cache where the filesystem allows it."""
    io: IoKind = "auto"
    """How experts are read; `auto`: `pread`, a pool of threads (docs/experiments.md)."""
    queue_depth: int = 8
    """Expert reads in flight."""
    lookahead: int = 0
    """1: while a layer's experts are read, guess those of the next and read them ahead (docs/experiments.md)."""
    watch_pressure: bool = True
    """Give a part of the expert arena back while others need the memory; of a streaming store only."""
    heat_dir: Path | None = None
    """Where the routing history of streamed containers is kept, for the next run to preload what it will ask for.
    None: a run starts cold and leaves nothing."""

    def __post_init__(self) -> None:
        _require_known("store", self.store, ("auto", "resident", "streaming"))
        _require_known("policy", self.policy, ("scored", "lru"))
        _require_known("io", self.io, ("auto", "pread", "io_uring"))
        _require_known("isa", self.isa, ISA_NAMES)
        _require(self.ctx >= 1, f"ctx: {self.ctx} tokens; must be at least 1")
        _require(
            self.queue_depth in range(1, 65), f"queue_depth: {self.queue_depth}; must be 1 to 64"
        )
        _require(self.lookahead in (0, 1), f"lookahead: {self.lookahead}; must be 0 or 1")
        for name in ("ram_bytes", "cache_bytes", "threads", "prefill_chunk"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"{name}: {value}; must be at least 1")
        cores = os.cpu_count() or 1
        _require(
            self.threads is None or self.threads <= 4 * cores + 16,
            f"threads: {self.threads} is far beyond this machine's {cores} cores",
        )


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Temperature 0 is greedy: the largest logit, ties to the lower id.

    The order is: repetition and presence penalties, temperature, top-k, top-p, min-p, then one draw from the softmax of
    what is left, with random numbers from Philox keyed by `seed` and counted by position.
    """

    max_new_tokens: int | None = None
    """None: until a stop token or the end of the context."""
    temperature: float = 1.0
    top_k: int = 0
    """0: off."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    """Strings that end the text; they are not part of it."""
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require(
            self.max_new_tokens is None or self.max_new_tokens >= 1,
            f"max_new_tokens: {self.max_new_tokens}; must be at least 1",
        )
        _require(
            0.0 <= self.temperature < 1e3, f"temperature: {self.temperature}; must be 0 to 1000"
        )
        _require(self.top_k >= 0, f"top_k: {self.top_k}; must be at least 0")
        _require(0.0 < self.top_p <= 1.0, f"top_p: {self.top_p}; must be above 0 and at most 1")
        _require(0.0 <= self.min_p <= 1.0, f"min_p: {self.min_p}; must be 0 to 1")
        _require(
            0.0 < self.repetition_penalty < 1e3,
            f"repetition_penalty: {self.repetition_penalty}; must be above 0",
        )
        _require(
            -1e3 < self.presence_penalty < 1e3,
            f"presence_penalty: {self.presence_penalty}; out of range",
        )
        _require(0 <= self.seed < 2**64, f"seed: {self.seed}; must be 0 to 2^64 - 1")
        _require(all(self.stop), "stop: an empty string would end every text at once")


def _require_known(name: str, value: str, known: tuple[str, ...]) -> None:
    _require(value in known, f"{name}: unknown {value!r}; known: {', '.join(known)}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
