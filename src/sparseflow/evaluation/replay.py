"""Replays recorded routes through the product's own expert cache, and beside it the best that any cache could do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparseflow.errors import ConfigError
from sparseflow.evaluation.routes import Ids, Routes, Session
from sparseflow.native import _ext

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Replayed:
    """Decode steps of one session: how many experts they asked for, and how many were not there."""

    session: str
    lookups: int
    misses: int
    belady_misses: int

    @property
    def miss_rate(self) -> float:
        return self.misses / self.lookups

    @property
    def belady_miss_rate(self) -> float:
        return self.belady_misses / self.lookups

    def to_dict(self) -> dict[str, Any]:
        return {
            "session": self.session,
            "lookups": self.lookups,
            "misses": self.misses,
            "miss_rate": self.miss_rate,
            "belady_misses": self.belady_misses,
            "belady_miss_rate": self.belady_miss_rate,
        }


@dataclass(frozen=True, slots=True)
class Replay:
    """All sessions at one capacity, each from an empty cache, or from the heat of the others."""

    policy: str
    slots: int
    has_heat: bool
    sessions: tuple[Replayed, ...]

    @property
    def miss_rate(self) -> float:
        """Mean over the sessions, as they differ in length."""
        return float(np.mean([session.miss_rate for session in self.sessions]))

    @property
    def belady_miss_rate(self) -> float:
        return float(np.mean([session.belady_miss_rate for session in self.sessions]))

    def to_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "slots": self.slots,
            "heat_from_others": self.has_heat,
            "miss_rate": self.miss_rate,
            "belady_miss_rate": self.belady_miss_rate,
            "sessions": [session.to_dict() for session in self.sessions],
        }


def parse_capacity(text: str, routes: Routes) -> int:
    """`25%` of all experts, in whole slots a layer, or a number of slots. Raises ConfigError."""
    every = routes.num_layers * routes.num_experts
    try:
        if text.endswith("%"):
            slots = routes.num_layers * floor(routes.num_experts * float(text[:-1]) / 100)
        else:
            slots = int(text)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"--capacity: {text!r}; write a share such as 25%, or a number of slots"
        ) from None
    if not 2 <= slots <= every:
        raise ConfigError(f"--capacity: {text} is {slots} slots; must be 2 to {every}")
    return slots


def replay(routes: Routes, policy: str, slots: int, *, has_heat: bool = False) -> Replay:
    """Every session alone: its prompt in one pass, then token by token; only decode steps are counted.

    has_heat: each begins with the history of the sessions that do not give its text away, hot experts preloaded.
    """
    replayed = []
    for session in routes.sessions:
        simulator = _simulator(routes, policy, slots)
        if has_heat:
            simulator.import_heat(_heat_of(routes, policy, routes.others(session)))
            simulator.preload()
        misses = [simulator.forward(ids) for ids in session.passes()]
        counted = sum(misses[len(misses) - len(session.decode) :])
        belady = belady_misses(session, layer_slots(routes, slots))
        replayed.append(Replayed(session.name, session.lookups, counted, belady))
    return Replay(policy, slots, has_heat, tuple(replayed))


def layer_slots(routes: Routes, slots: int) -> list[int]:
    """The capacity split over the layers by count, as the cache does."""
    share, more = divmod(slots, routes.num_layers)
    return [share + (layer < more) for layer in range(routes.num_layers)]


def belady_misses(session: Session, capacities: Sequence[int]) -> int:
    """Misses of decode steps if each layer always kept what is asked for again soonest."""
    passes = [
        [np.unique(ids[:, layer]) for ids in session.passes()] for layer in range(len(capacities))
    ]
    first = len(session.passes()) - len(session.decode)
    return sum(
        _belady_layer(sets, capacity, first)
        for sets, capacity in zip(passes, capacities, strict=True)
    )


def _belady_layer(passes: Sequence[Ids], capacity: int, first_counted: int) -> int:
    """passes: the experts of each forward pass in one layer, distinct."""
    next_use = _next_uses(passes)
    cached: dict[int, int] = {}  # expert -> the pass that asks for it next
    misses = 0
    for index, experts in enumerate(passes):
        if index >= first_counted:
            misses += sum(int(expert) not in cached for expert in experts)
        cached.update(zip(experts.tolist(), next_use[index].tolist(), strict=True))
        for expert in sorted(cached, key=lambda e: (-cached[e], e))[
            : max(len(cached) - capacity, 0)
        ]:
            del cached[expert]
    return misses


def _next_uses(passes: Sequence[Ids]) -> list[NDArray[np.int64]]:
    following: dict[int, int] = {}
    uses: list[NDArray[np.int64]] = []
    for index in range(len(passes) - 1, -1, -1):
        uses.append(np.array([following.get(int(e), NEVER) for e in passes[index]], dtype=np.int64))
        following.update(dict.fromkeys(passes[index].tolist(), index))
    return uses[::-1]


def _heat_of(routes: Routes, policy: str, sessions: Iterable[Session]) -> NDArray[np.float32]:
    """The history after these sessions, one after another; it does not depend on the capacity."""
    simulator = _simulator(routes, policy, routes.num_layers * routes.num_experts)
    for session in sessions:
        for ids in session.passes():
            simulator.forward(ids)
    return simulator.export_heat()


def _simulator(routes: Routes, policy: str, slots: int) -> _ext.CacheSimulator:
    return _ext.CacheSimulator(
        policy, routes.num_layers, routes.num_experts, routes.num_experts_per_tok, slots
    )


CURVE_PERCENT = (5, 10, 13.3, 20, 25, 35, 50, 75, 100)


def hit_curves(
    routes: Routes, progress: Callable[[str, int, int], None] | None = None
) -> dict[str, list[tuple[float, float]]]:
    """Hit rate over capacity, both in percent: every policy cold, `scored` with the others' heat, the best possible."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for number, percent in enumerate(CURVE_PERCENT):
        slots = routes.num_layers * floor(routes.num_experts * percent / 100)
        if slots < routes.num_layers * routes.num_experts_per_tok:
            continue  # the cache does not split so little by layer
        runs = {name: replay(routes, name, slots) for name in _ext.policy_names()}
        rates = {name: run.miss_rate for name, run in runs.items()}
        rates["scored, others' heat"] = replay(routes, "scored", slots, has_heat=True).miss_rate
        rates["best possible"] = runs["scored"].belady_miss_rate
        for name, rate in rates.items():
            curves.setdefault(name, []).append((percent, 100 * (1 - rate)))
        if progress is not None:
            progress("curve", number + 1, len(CURVE_PERCENT))
    return curves
