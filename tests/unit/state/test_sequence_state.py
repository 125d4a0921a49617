from __future__ import annotations

import numpy as np
import pytest

from sparseflow.errors import ConfigError
from sparseflow.state.delta_state import DeltaState
from sparseflow.state.kv_cache import KVCache
from sparseflow.state.sequence_state import SequenceState


def make(capacity: int = 8) -> SequenceState:
    return SequenceState(
        [DeltaState(2, 3, 4, (5, 3)), KVCache(2, capacity, 4, "float16")], capacity
    )


def fill(state: SequenceState, num_tokens: int, value: float) -> None:
    delta, cache = state.layers
    assert isinstance(delta, DeltaState)
    assert isinstance(cache, KVCache)
    with state.step(num_tokens) as position:
        delta.matrices += value
        delta.conv_tail[...] = value
        cache.keys[:, position : position + num_tokens] = value
        cache.values[:, position : position + num_tokens] = -value


def contents(state: SequenceState) -> list[np.ndarray]:
    delta, cache = state.layers
    assert isinstance(delta, DeltaState)
    assert isinstance(cache, KVCache)
    seen = slice(0, state.position)
    return [
        delta.matrices.copy(),
        delta.conv_tail.copy(),
        cache.keys[:, seen].copy(),
        cache.values[:, seen].copy(),
    ]


def assert_same(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_snapshot_brings_everything_back() -> None:
    state = make()
    fill(state, 3, 1.0)
    snapshot, before = state.snapshot(), contents(state)
    fill(state, 4, 9.0)
    state.restore(snapshot)
    assert state.position == 3
    assert_same(contents(state), before)


def test_a_snapshot_fits_into_another_state_of_another_capacity() -> None:
    state = make()
    fill(state, 3, 1.0)
    other = make(capacity=5)
    other.restore(state.snapshot())
    assert_same(contents(other), contents(state))


def test_a_snapshot_owns_its_bytes() -> None:
    state = make()
    fill(state, 2, 1.0)
    before = contents(state)
    snapshot = state.snapshot()
    state.reset()
    fill(state, 2, 5.0)
    state.restore(snapshot)
    assert_same(contents(state), before)


def test_reset_is_the_beginning() -> None:
    state = make()
    fill(state, 2, 1.0)
    state.reset()
    assert state.position == 0
    assert_same(contents(state), contents(make()))


def test_an_interrupted_step_is_noticed() -> None:
    state = make()
    fill(state, 2, 1.0)
    snapshot = state.snapshot()
    with pytest.raises(KeyboardInterrupt), state.step(1):
        raise KeyboardInterrupt
    assert state.position == 2
    with pytest.raises(ConfigError, match="interrupted"):
        fill(state, 1, 1.0)
    with pytest.raises(ConfigError, match="interrupted"):
        state.snapshot()
    state.restore(snapshot)
    fill(state, 1, 1.0)
    assert state.position == 3


def test_tokens_beyond_the_capacity_are_refused_before_the_step() -> None:
    state = make(capacity=4)
    fill(state, 4, 1.0)
    with pytest.raises(ConfigError, match="5 tokens do not fit into a context of 4"):
        fill(state, 1, 1.0)
    assert state.snapshot().position == 4


def test_a_snapshot_that_is_too_long_is_refused() -> None:
    state = make()
    fill(state, 6, 1.0)
    with pytest.raises(ConfigError, match="does not fit"):
        make(capacity=5).restore(state.snapshot())


def test_a_snapshot_of_another_model_is_refused() -> None:
    other = SequenceState([KVCache(2, 8, 4, "float16"), DeltaState(2, 3, 4, (5, 3))], 8)
    with pytest.raises(ConfigError, match="another model"):
        make().restore(other.snapshot())
