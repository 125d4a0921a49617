"""Replaying routes: small files whose answers are known by hand, and the recorded ones where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparseflow.errors import ConfigError, StorageError
from sparseflow.evaluation.replay import belady_misses, layer_slots, parse_capacity, replay
from sparseflow.evaluation.routes import Routes, read_routes

Tokens = list[list[int]]  # the experts of each token, falling weight

SHARED = Path(os.environ.get("SPARSEFLOW_TEST_DATA", Path(__file__).parents[3].parent / "shared"))
RECORDED = SHARED / "data" / "routes" / "routes_qwen36.npz"
needs_recorded = pytest.mark.skipif(not RECORDED.is_file(), reason="the recorded routes are absent")


def write_routes(path: Path, texts: dict[str, tuple[Tokens, Tokens]], **arrays: Any) -> Path:
    """texts: (prompt, decoded), each the choices of one layer; the second layer chooses the same."""
    content: dict[str, Any] = {"sessions": np.array(list(texts))}
    for index, (name, (prompt, decoded)) in enumerate(texts.items()):
        rows = np.array(prompt + decoded, dtype=np.uint8)
        content[f"{name}_experts"] = np.repeat(rows[:, None, :], 2, axis=1)
        content[f"{name}_tokens"] = np.arange(len(rows), dtype=np.uint32) + 100 * index
        content[f"{name}_decode"] = np.array([0] * len(prompt) + [1] * len(decoded), dtype=np.uint8)
    np.savez(path, **{**content, **arrays})
    return path


@pytest.fixture
def small(tmp_path: Path) -> Routes:
    """8 experts, 2 a token. With 4 slots a layer the prompt leaves 0 to 3."""
    text = ([[0, 1], [2, 3]], [[0, 2], [4, 5], [0, 2], [6, 7], [0, 2], [4, 5]])
    return read_routes(write_routes(tmp_path / "routes.npz", {"a": text}), num_experts=8)


def misses(routes: Routes, policy: str, slots: int, **options: Any) -> list[int]:
    return [session.misses for session in replay(routes, policy, slots, **options).sessions]


def test_lru_misses_what_was_used_longest_ago(small: Routes) -> None:
    # A layer holds 0123, then 02(45), and so on: 0 2 always hit, every other pair misses.
    assert misses(small, "lru", 8) == [2 * 6]
    assert small.sessions[0].lookups == 2 * 12


def test_everything_is_missed_once_where_everything_fits(small: Routes) -> None:
    assert misses(small, "scored", 16) == [2 * 4]  # 4 5 6 7: the rest came with the prompt


def test_the_best_possible_keeps_what_comes_back(small: Routes) -> None:
    # 6 7 are read and given up at once; 4 5 are read and kept.
    assert belady_misses(small.sessions[0], [4, 4]) == 2 * 4
    assert belady_misses(small.sessions[0], [2, 2]) == 2 * 6
    assert belady_misses(small.sessions[0], [8, 8]) == 2 * 4


@pytest.mark.parametrize("slots", [8, 10, 12, 16])
@pytest.mark.parametrize("policy", ["scored", "lru"])
def test_no_policy_beats_the_best_possible(small: Routes, policy: str, slots: int) -> None:
    (session,) = replay(small, policy, slots).sessions
    assert session.misses >= session.belady_misses


def test_scored_keeps_what_is_chosen_often(tmp_path: Path) -> None:
    often = [[0, 1]] * 12
    scan = [[2, 3], [4, 5], [0, 1]]
    path = write_routes(tmp_path / "routes.npz", {"a": (often, scan)})
    routes = read_routes(path, num_experts=8)
    assert misses(routes, "scored", 8) == [2 * 4]
    assert misses(routes, "lru", 8) == [2 * 6]


def test_heat_of_others_is_preloaded(tmp_path: Path) -> None:
    first = ([[0, 1]], [[2, 3]] * 4)
    second = ([[6, 7]], [[2, 3]] * 4)
    path = write_routes(tmp_path / "routes.npz", {"a": first, "b": second})
    routes = read_routes(path, num_experts=8)
    assert misses(routes, "scored", 12) == [2 * 2, 2 * 2]
    assert misses(routes, "scored", 12, has_heat=True) == [0, 0]


def test_sessions_that_begin_with_the_same_text_do_not_teach_each_other(tmp_path: Path) -> None:
    text = ([[0, 1]], [[2, 3]] * 9)
    tokens = np.arange(10, dtype=np.uint32)
    path = write_routes(
        tmp_path / "routes.npz", {"a": text, "b": text, "c": text}, a_tokens=tokens, b_tokens=tokens
    )
    routes = read_routes(path)
    names = {s.name: [other.name for other in routes.others(s)] for s in routes.sessions}
    assert names == {"a": ["c"], "b": ["c"], "c": ["a", "b"]}


def test_capacities_are_shares_in_whole_slots_a_layer_or_numbers(small: Routes) -> None:
    assert parse_capacity("50%", small) == 8
    assert parse_capacity("30%", small) == 4
    assert parse_capacity("7", small) == 7
    assert layer_slots(small, 7) == [4, 3]
    for wrong in ("", "x", "x%", "1", "17", "0%", "113%", "0.5", "nan%", "inf%", "1e400%"):
        with pytest.raises(ConfigError, match="--capacity"):
            parse_capacity(wrong, small)


def test_a_missing_file_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read the routes"):
        read_routes(tmp_path / "absent.npz")


HOSTILE = {
    "no sessions": {"sessions": np.array([], dtype="U1")},
    "an unknown session": {"sessions": np.array(["b"])},
    "an expert twice": {"a_experts": np.zeros((3, 2, 2), dtype=np.uint8)},
    "a negative id": {"a_experts": np.array([[[0, -1]]] * 3)},
    "no integers": {"a_experts": np.zeros((3, 2, 2))},
    "two dimensions": {"a_experts": np.zeros((3, 2), dtype=np.uint8)},
    "other lengths": {"a_decode": np.ones(2, dtype=np.uint8)},
    "no decoded token": {"a_decode": np.zeros(3, dtype=np.uint8)},
    "a prompt after the answer": {"a_decode": np.array([0, 1, 0], dtype=np.uint8)},
    "pickled objects": {"a_experts": np.array([[[None]]] * 3)},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_holds_no_routes_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    text = {"a": ([[0, 1]], [[2, 3], [0, 1]])}
    path = write_routes(tmp_path / "routes.npz", text, **HOSTILE[name])
    with pytest.raises(ConfigError, match=r"routes\.npz") as caught:
        read_routes(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "routes.npz"
    for content in (b"", b"PK\x03\x04 cut", b"\x93NUMPY\x01\x00", b"text"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"routes\.npz: not a file of routes"):
            read_routes(path)


@pytest.fixture(scope="module")
def recorded() -> Routes:
    return read_routes(RECORDED)


@needs_recorded
def test_lru_on_recorded_routes_is_the_published_reference(recorded: Routes) -> None:
    assert misses(recorded, "lru", 1360) == [2601, 2908, 3089, 3551, 3681]
    assert misses(recorded, "lru", 2720) == [1546, 1518, 1805, 2128, 2301]


@needs_recorded
@pytest.mark.parametrize(("capacity", "most"), [("13.3%", 0.310), ("25%", 0.193)])
def test_scored_misses_few_on_recorded_routes(recorded: Routes, capacity: str, most: float) -> None:
    result = replay(recorded, "scored", parse_capacity(capacity, recorded))
    assert result.belady_miss_rate < result.miss_rate <= most


@needs_recorded
def test_heat_of_other_sessions_halves_the_misses_at_half_capacity(recorded: Routes) -> None:
    slots = parse_capacity("50%", recorded)
    warm = replay(recorded, "scored", slots, has_heat=True)
    assert warm.miss_rate <= 0.075
    assert replay(recorded, "scored", slots).miss_rate > 0.13


@needs_recorded
def test_heat_of_other_sessions_harms_at_no_capacity(recorded: Routes) -> None:
    for capacity in ("10%", "13.3%", "25%"):
        slots = parse_capacity(capacity, recorded)
        warm = replay(recorded, "scored", slots, has_heat=True)
        assert warm.miss_rate <= replay(recorded, "scored", slots).miss_rate + 0.005
