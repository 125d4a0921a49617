"""The judgement under memory pressure: alone, and in a model of a control group in which others take memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from sparseflow.engine.pressure import (
    FLOOR,
    LONGEST_WAIT,
    SHORTEST_WAIT,
    Arena,
    Past,
    decide,
    seconds_to_wait,
)
from sparseflow.host.pressure import MemoryScope, PressureFacts, Stall

GIB, MIB = 1 << 30, 1 << 20


@dataclass
class Group:
    """A limit, an engine that fills its arena at 1 GiB a second, and somebody else."""

    limit: int
    full: int
    dense: int = 512 * MIB
    others: int = 0
    allowed: int = 0
    touched: int = 0
    seconds: float = 0.0
    past: Past = Past()  # noqa: RUF009 - frozen
    stalled: float = 0.0

    def __post_init__(self) -> None:
        self.allowed = self.touched = self.full

    @property
    def arena(self) -> Arena:
        return Arena(self.full, self.allowed, self.touched, 64 * MIB)

    @property
    def facts(self) -> PressureFacts:
        own = self.dense + self.touched
        stall = Stall(0.0, 0.0, self.stalled, 0.0)
        return PressureFacts(
            (
                MemoryScope("machine", 64 * GIB, own + self.others + GIB, 0, 0, stall),
                MemoryScope("group", self.limit, own + self.others, 0, 0, stall),
            ),
            own,
        )

    def look(self) -> float:
        """One reading, whose target is rounded down to segments as the cache does; returns the wait."""
        target, self.past = decide(self.seconds, self.facts, self.arena, self.past)
        if target < self.full:
            target = max(64 * MIB, target // (64 * MIB) * (64 * MIB))
        self.allowed = target
        self.touched = min(self.touched, target)
        return seconds_to_wait(self.facts)

    def run(self, seconds: float, rate: int = 0, goal: int = 0) -> None:
        """Others go on at `rate` bytes a second to `goal`; the kernel kills when the limit is passed."""
        end = self.seconds + seconds
        while self.seconds < end:
            wait = self.look()
            self.seconds += wait
            self.touched = min(self.allowed, self.touched + int(GIB * wait))
            self.others = (
                min(max(goal, self.others), self.others + int(rate * wait))
                if rate >= 0
                else max(goal, self.others + int(rate * wait))
            )
            assert self.dense + self.touched + self.others <= self.limit, f"at {self.seconds:.2f} s"


def test_an_arena_that_fills_its_own_budget_is_left_alone() -> None:
    for slack in (FLOOR, 100 * MIB, GIB):
        group = Group(limit=3 * GIB + 512 * MIB + slack, full=3 * GIB)
        group.touched = 0
        group.run(10)
        assert group.allowed == group.touched == 3 * GIB


def test_own_growth_up_to_the_limit_does_not_shrink_the_arena() -> None:
    group = Group(limit=4 * GIB, full=3 * GIB)
    for _ in range(20):
        group.run(1)
        group.dense = min(group.dense + 32 * MIB, GIB - FLOOR)  # keys and values
    assert group.allowed == 3 * GIB


def test_noise_of_others_does_not_shrink_a_full_budget() -> None:
    group = Group(limit=3 * GIB + 600 * MIB, full=3 * GIB, others=20 * MIB)
    for size in (20, 40, 5, 30, 20, 35, 5):
        group.others = size * MIB
        group.run(0.5)
    assert group.allowed == 3 * GIB


@pytest.mark.parametrize("rate", [GIB // 8, GIB // 2, GIB, 2 * GIB])
def test_others_get_what_they_take_and_the_arena_comes_back(rate: int) -> None:
    group = Group(limit=4 * GIB, full=3 * GIB)
    group.run(5)
    group.run(20, rate, 2 * GIB)
    assert group.others == 2 * GIB
    assert GIB < group.allowed < 4 * GIB - 512 * MIB - 2 * GIB - 128 * MIB
    assert group.allowed == group.touched
    group.run(1, -4 * GIB)
    assert group.others == 0
    group.run(8)
    assert group.allowed == group.touched == 3 * GIB


@pytest.mark.parametrize("slack", [128 * MIB, 256 * MIB])
def test_a_budget_without_much_slack_gives_others_what_it_can(slack: int) -> None:
    group = Group(limit=3 * GIB + 512 * MIB + slack, full=3 * GIB)
    group.run(20, GIB // 2, 2 * GIB)
    assert group.others == 2 * GIB
    group.run(1, -4 * GIB)
    group.run(8)
    assert group.allowed == 3 * GIB


def test_others_that_stay_for_long_keep_what_they_have() -> None:
    group = Group(limit=4 * GIB, full=3 * GIB)
    group.run(10, GIB, 2 * GIB)
    allowed = group.allowed
    for _ in range(20):
        group.run(5)
        assert group.allowed == allowed


def test_the_machine_binds_where_it_has_less_than_the_group() -> None:
    facts = PressureFacts(
        (
            MemoryScope("machine", 8 * GIB, 8 * GIB - 10 * MIB, 0, 0, None),
            MemoryScope("group", 64 * GIB, 4 * GIB, 0, 0, None),
        ),
        3 * GIB,
    )
    target, _ = decide(0.0, facts, Arena(2 * GIB, 2 * GIB, 2 * GIB, 64 * MIB), Past())
    assert target == 2 * GIB + 10 * MIB - FLOOR


def test_stalls_double_the_reserve() -> None:
    group = Group(limit=4 * GIB, full=3 * GIB)
    group.run(3)
    group.others = 200 * MIB
    group.run(3)
    assert group.allowed == 3 * GIB
    for _ in range(10):
        group.stalled += 0.05
        group.seconds += 0.2
        group.look()
    assert 3 * GIB - 256 * MIB <= group.allowed < 3 * GIB
    group.run(5)
    assert group.allowed == 3 * GIB


def test_growth_is_by_steps_and_after_a_calm() -> None:
    group = Group(limit=4 * GIB, full=2 * GIB)
    group.allowed = group.touched = 512 * MIB
    group.past = replace(Past(), next_growth=2.0)
    group.run(1.9)
    assert group.allowed == 512 * MIB
    group.run(0.3)
    assert group.allowed == 768 * MIB


def test_the_target_is_never_negative() -> None:
    facts = PressureFacts((MemoryScope("machine", GIB, GIB, 0, 0, None),), 0)
    assert decide(0.0, facts, Arena(MIB, MIB, 0, MIB), Past())[0] == 0


def test_the_wait_is_shorter_where_less_is_left() -> None:
    group = Group(limit=4 * GIB, full=3 * GIB)
    assert seconds_to_wait(group.facts) == LONGEST_WAIT
    group.others = 312 * MIB
    assert SHORTEST_WAIT < seconds_to_wait(group.facts) < LONGEST_WAIT
    group.others = 500 * MIB
    assert seconds_to_wait(group.facts) == SHORTEST_WAIT
