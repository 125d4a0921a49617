"""A peer is run by its driver, its best setting is found, and what is missing is said before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparseflow.bench.measure import Plan
from sparseflow.bench.peer import (
    Peer,
    Setting,
    decode_speed,
    limited_space,
    prefill_speed,
    search,
    search_space,
)
from sparseflow.bench.searches import search_best
from sparseflow.errors import ConfigError, StorageError

DRIVER = Path(__file__).parent / "fake_peer.py"


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    return Peer(tmp_path, model, DRIVER)


def test_report_of_the_driver_is_read_with_what_its_parent_saw(peer: Peer) -> None:
    report = peer.run([5, 6], 3, Setting(2, huge_pages=1))
    assert report["ids"] == [7, 8, 9]
    assert report["setting"]["threads"] == 2
    assert report["watch"]["oom_kills"] == 0
    assert "hugetlb=1" in report["tunables"]
    assert peer.run([5], 1, Setting(2))["tunables"] == ""
    assert decode_speed(report) == pytest.approx(100.0)
    assert prefill_speed(report) == pytest.approx(400.0)


def test_failed_driver_ends_in_its_last_line(peer: Peer) -> None:
    with pytest.raises(StorageError, match="this build has no direct I/O"):
        peer.run([1], 1, Setting(1, "dio"))


def test_search_finds_the_best_and_lists_every_trial(peer: Peer) -> None:
    first = Setting(2, repack=0)
    best, trials = search(lambda s: peer.run([1], 2, s), first, "decode", {"repack": (0, 1)})
    assert best == Setting(2, repack=1)
    assert [trial.setting.repack for trial in trials] == [0, 1]
    assert trials[1].decode > trials[0].decode


def test_second_search_by_the_other_metric_runs_nothing_again(
    peer: Peer, tiny_moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Setting] = []
    original = Peer.run

    def count(self: Peer, *arguments: Any, **options: Any) -> dict[str, Any]:
        runs.append(arguments[2])
        return original(self, *arguments, **options)

    monkeypatch.setattr(Peer, "run", count)
    plan = Plan(tiny_moe, prompt=4, config={"threads": 1}, peer=peer)
    tried: dict[Setting, dict[str, Any]] = {}
    by_decode, trials = search_best(plan, "decode", 2, tried)
    num_runs = len(runs)
    by_prefill, again = search_best(plan, "prefill", 2, tried)
    assert by_decode == by_prefill
    assert len(runs) == num_runs == len(trials) == len(again)


def test_setting_that_fails_is_listed_with_its_problem(peer: Peer) -> None:
    best, trials = search(lambda s: peer.run([1], 2, s), Setting(1), "decode", {"load": ("dio",)})
    assert best == Setting(1)
    assert "no direct I/O" in trials[1].problem


def test_peer_that_runs_under_no_setting_is_an_error(peer: Peer) -> None:
    with pytest.raises(ConfigError, match="under no setting"):
        search(lambda s: peer.run([1], 2, s), Setting(1, "dio"), "decode", {})


def test_without_a_limit_all_is_varied_and_under_one_only_what_fits() -> None:
    assert set(search_space(Setting(2))) == {"repack", "load", "huge_pages", "threads", "ubatch"}
    space = limited_space(Setting(2, "mmap", 0), (None, 128))
    assert set(space) == {"read_ahead_kib", "threads"}
    assert space["read_ahead_kib"] == (None, 128)


@pytest.mark.parametrize("missing", ["build", "model", "driver"])
def test_what_is_missing_is_said(peer: Peer, tmp_path: Path, missing: str) -> None:
    nowhere = tmp_path / "nowhere"
    parts = {"build": peer.build, "model": peer.model, "driver": peer.driver, missing: nowhere}
    with pytest.raises(ConfigError, match="nowhere: no such"):
        Peer(**parts).check()
    peer.check()
