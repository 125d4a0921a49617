"""How large the expert arena may be while others use memory too: a pure function from readings to a target.

docs/expert_cache.md, "Under pressure", says why these rules and not others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparseflow.host.pressure import MemoryScope, PressureFacts

RESERVE_SHARE = 16
"""The reserve is this fraction of a limit, within the next two."""
LEAST_RESERVE = 64 << 20
MOST_RESERVE = 512 << 20
FLOOR = 32 << 20
"""What must stay available even where the engine was given all there is."""
NOISE = 32 << 20
NOISE_SHARE = 512
"""Others may grow by NOISE and this fraction of the arena before it counts: page tables, kernel memory, caches."""
HASTE = 8 << 20
"""Growth from one reading to the next that is expected to go on."""
STALL_SHARE = 0.1
"""Of the time between two readings; beyond it the reserve counts double."""
CALM_SECONDS = 2.0
"""There must have been room for so long before the arena grows."""
STEP_SECONDS = 0.5
STEPS = 8
"""From nothing to the full arena."""
FASTEST = 2 << 30
"""Bytes a second that others are expected to take at most."""
SHORTEST_WAIT, LONGEST_WAIT = 0.05, 0.2
"""Seconds between two readings."""


@dataclass(frozen=True, slots=True)
class Arena:
    """The expert arena in bytes."""

    full: int
    """What the engine was opened with."""
    allowed: int
    touched: int
    """Written to, so that it is a part of what this process uses."""
    segment: int
    """It changes by whole segments."""


@dataclass(frozen=True, slots=True)
class Others:
    """What a scope's other users held."""

    least_bytes: int
    last_bytes: int
    stalled_seconds: float


@dataclass(frozen=True, slots=True)
class Past:
    """What is remembered from one reading to the next."""

    seconds: float = 0.0
    others: Mapping[str, Others] = field(default_factory=dict)
    """By the name of the scope."""
    next_growth: float = 0.0


def decide(seconds: float, facts: PressureFacts, arena: Arena, past: Past) -> tuple[int, Past]:
    """(bytes that the arena should be allowed from now on, what to remember). seconds: a clock that only advances."""
    others, affordable = {}, arena.full
    for scope in facts.scopes:
        now = _others(scope, facts.own_bytes, past)
        is_stalled = _is_stalled(scope, seconds, past)
        affordable = min(affordable, _affordable(scope, arena, now, past, is_stalled=is_stalled))
        others[scope.name] = now
    target, next_growth = arena.allowed, past.next_growth
    if affordable < arena.allowed:
        target, next_growth = affordable, seconds + CALM_SECONDS
    elif affordable < min(arena.full, arena.allowed + arena.segment):
        next_growth = max(next_growth, seconds + CALM_SECONDS)
    elif arena.allowed < arena.full and seconds >= next_growth:
        step = max(arena.segment, arena.full // STEPS)
        target, next_growth = min(affordable, arena.allowed + step), seconds + STEP_SECONDS
    return max(0, target), Past(seconds, others, next_growth)


def seconds_to_wait(facts: PressureFacts) -> float:
    """Until the next reading: before the fastest could take what is available now."""
    return min(LONGEST_WAIT, max(SHORTEST_WAIT, facts.available_bytes / FASTEST))


def _affordable(
    scope: MemoryScope, arena: Arena, now: Others, past: Past, *, is_stalled: bool
) -> int:
    """What the arena may hold so that a reserve stays available in this scope.

    By design an engine may leave less than the reserve: `design` is what would be available if the arena were full and
    nobody else had grown. So what the engine itself takes, up to what it was given, never shrinks its arena.
    """
    reserve = min(MOST_RESERVE, max(LEAST_RESERVE, scope.limit_bytes // RESERVE_SHARE))
    grown = now.last_bytes - now.least_bytes - NOISE - arena.full // NOISE_SHARE
    design = scope.available_bytes - (arena.full - arena.touched) + max(0, grown)
    kept = max(FLOOR, min(design, 2 * reserve if is_stalled else reserve))
    before = past.others.get(scope.name, now).last_bytes
    rise = now.last_bytes - before
    haste = rise if grown > 0 and rise > HASTE else 0
    return arena.touched + scope.available_bytes - kept - haste


def _others(scope: MemoryScope, own_bytes: int, past: Past) -> Others:
    held = max(0, scope.used_bytes - own_bytes)
    before = past.others.get(scope.name)
    least = held if before is None else min(held, before.least_bytes)
    return Others(least, held, scope.stall.some_seconds if scope.stall else 0.0)


def _is_stalled(scope: MemoryScope, seconds: float, past: Past) -> bool:
    before = past.others.get(scope.name)
    if scope.stall is None or before is None:
        return False
    stalled = scope.stall.some_seconds - before.stalled_seconds
    return stalled > STALL_SHARE * (seconds - past.seconds)
