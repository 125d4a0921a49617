"""What an engine reports about itself: times that add up, memory by use, and the expert store's
counters.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparseflow.experts.store import ExpertStats


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes by use, as allocated; the state's pages are touched only as a sequence grows."""

    dense_bytes: int
    expert_bytes: int
    state_bytes: int
    """Of one sequence at full context."""

    @property
    def total_bytes(self) -> int:
        return self.dense_bytes + self.expert_bytes + self.state_bytes


@dataclass(frozen=True, slots=True)
class TimeStats:
    """Wall-clock seconds by phase since the engine began to open. They add up to `total_seconds`
    exactly.
    """

    load_seconds: float
    tokenize_seconds: float
    prefill_seconds: float
    decode_seconds: float
    """From the first sampled token on: forward steps, sampling, text."""
    idle_seconds: float
    """The caller's own time: between a token and the request for the next one, and between
    requests.
    """

    @property
    def total_seconds(self) -> float:
        return (
            self.load_seconds
            + self.tokenize_seconds
            + self.prefill_seconds
            + self.decode_seconds
            + self.idle_seconds
        )


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the engine opened, over all its requests."""

    prompt_tokens: int
    new_tokens: int
    times: TimeStats
    memory: MemoryStats
    experts: ExpertStats
    isa: str
    threads: int
    recipe: str
    model_type: str
    store: str
    """`resident` or `streaming`."""
    active_leases: int
    warnings: tuple[str, ...]
    """What went wrong without changing the output: a sentence each."""

    @property
    def load_seconds(self) -> float:
        return self.times.load_seconds

    @property
    def prefill_seconds(self) -> float:
        return self.times.prefill_seconds

    @property
    def decode_seconds(self) -> float:
        return self.times.decode_seconds

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, ready for JSON, with the totals."""
        tree = asdict(self)
        tree["times"]["total_seconds"] = self.times.total_seconds
        tree["memory"]["total_bytes"] = self.memory.total_bytes
        return tree


class PhaseClock:
    """Books every moment on exactly one phase, so that the phases add up to the whole."""

    PHASES = ("load", "tokenize", "prefill", "decode", "idle")

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(self.PHASES, 0.0)
        self._phase = "load"
        self._since = time.perf_counter()

    def enter(self, phase: str) -> None:
        """What has passed since the last call belongs to the phase entered then; `phase` begins
        now.
        """
        now = time.perf_counter()
        self._seconds[self._phase] += now - self._since
        self._since, self._phase = now, phase

    def read(self) -> TimeStats:
        """The seconds up to now; the current phase goes on."""
        self.enter(self._phase)
        return TimeStats(*(self._seconds[phase] for phase in self.PHASES))
