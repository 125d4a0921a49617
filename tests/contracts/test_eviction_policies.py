"""Every eviction policy: deterministic, with a memory that survives eviction; and what each of them prefers."""

from __future__ import annotations

import numpy as np
import pytest

from sparseflow.errors import ConfigError
from sparseflow.native import _ext

NUM_LAYERS, NUM_EXPERTS = 2, 8
Policy = _ext.testing.EvictionPolicy


def create(name: str) -> Policy:
    return _ext.testing.create_policy(name, NUM_LAYERS, NUM_EXPERTS)


def observe(policy: Policy, layer: int, *tokens: tuple[int, ...]) -> None:
    for experts in tokens:
        policy.observe(layer, np.array(experts, dtype=np.int32))


def ranking(policy: Policy, layer: int) -> list[int]:
    """Experts from the first to be evicted to the last."""
    return sorted(range(NUM_EXPERTS), key=lambda expert: (policy.score(layer, expert), expert))


@pytest.fixture(params=_ext.policy_names())
def policy(request: pytest.FixtureRequest) -> Policy:
    return create(request.param)


def test_what_was_never_chosen_goes_first(policy: Policy) -> None:
    observe(policy, 0, (1, 5), (2, 5))
    assert ranking(policy, 0)[:5] == [0, 3, 4, 6, 7]


def test_a_policy_knows_its_name(policy: Policy) -> None:
    assert policy.name in _ext.policy_names()
    assert create(policy.name).name == policy.name


def test_layers_have_their_own_history(policy: Policy) -> None:
    observe(policy, 0, (1, 2))
    before = [policy.score(0, expert) for expert in range(NUM_EXPERTS)]
    observe(policy, 1, (3, 4), (5, 6))
    assert [policy.score(0, expert) for expert in range(NUM_EXPERTS)] == before
    assert ranking(policy, 1)[:4] == [0, 1, 2, 7]


def test_the_same_history_gives_the_same_scores(policy: Policy) -> None:
    other = create(policy.name)
    random = np.random.default_rng(2)
    for _ in range(300):
        experts = tuple(sorted(random.choice(NUM_EXPERTS, 3, replace=False)))
        observe(policy, 1, experts)
        observe(other, 1, experts)
    assert ranking(policy, 1) == ranking(other, 1)


def test_lru_keeps_what_was_chosen_last() -> None:
    policy = create("lru")
    observe(policy, 0, *([(0, 1)] * 50), (2, 3), (4, 5))
    assert ranking(policy, 0)[2:] == [0, 1, 2, 3, 4, 5]


def test_scored_keeps_what_is_chosen_often() -> None:
    policy = create("scored")
    observe(policy, 0, *([(0, 1)] * 50), (2, 3), (4, 5), (2, 6))
    assert ranking(policy, 0)[-2:] == [0, 1]  # fifty times, though not in the last three tokens
    assert policy.score(0, 2) > policy.score(0, 6) > policy.score(0, 5)


def test_scored_is_the_weighted_sum_of_two_moving_averages() -> None:
    policy = create("scored")
    observe(policy, 0, (3,), (0,), (3,), (1,))
    sums = [2 ** (-3 / half_life) + 2 ** (-1 / half_life) for half_life in (2, 32)]
    weights = [1 - 2 ** (-1 / 2), 2 * (1 - 2 ** (-1 / 32))]
    assert policy.score(0, 3) == pytest.approx(np.dot(weights, sums), rel=1e-12)


def test_scored_forgets_in_the_end() -> None:
    policy = create("scored")
    observe(policy, 0, (3,), *([(1,)] * 4000))
    assert policy.score(0, 3) == 0.0


def test_unknown_policies_are_refused_by_naming_the_known() -> None:
    with pytest.raises(ConfigError, match="unknown 'belady'; known: scored, lru"):
        create("belady")
