"""Verdicts, suites, and a table in which nothing that was not measured looks measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparseflow.bench.earlier import read_report
from sparseflow.bench.report import Sheet, targets_sheet
from sparseflow.bench.suite import Suite, merge, read_suite
from sparseflow.bench.target_runs import TargetRuns
from sparseflow.bench.target_values import VALUES, run_targets
from sparseflow.bench.targets import TARGETS, Outcome, all_met, outcome
from sparseflow.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("D1", 0.93, "aim"),
        ("D1", 0.82, "pass"),
        ("D1", 0.81, "miss"),
        ("L1", 1.05, "aim"),
        ("L1", 1.5, "pass"),
        ("L1", 1.51, "miss"),
        ("M1:memory", 300 << 20, "aim"),
        ("D1", None, "not measured"),
        ("D4:12 GiB", 0.1, "reported"),
    ],
)
def test_verdicts_know_which_way_is_better(name: str, value: float | None, verdict: str) -> None:
    assert outcome(name, value).verdict == verdict


def test_a_miss_fails_and_a_missing_measurement_does_not() -> None:
    assert all_met([outcome("D1", 0.9), outcome("D2", None, "no container")])
    assert not all_met([outcome("D1", 0.9), outcome("D2", 0.1)])


def test_every_target_of_the_list_has_a_value_and_every_group_is_there() -> None:
    assert VALUES.keys() == TARGETS.keys()
    groups = {target.group for target in TARGETS.values()}
    assert " ".join(sorted(groups)) == "C1 D1 D2 D3 D3s D4 D4m D5 L1 M1 O1 P1 P2 P3"


def test_empty_suite_measures_nothing_and_says_why_for_each() -> None:
    outcomes = run_targets(TargetRuns(Suite()))
    assert len(outcomes) == len(TARGETS)
    assert all(each.value is None and each.reason for each in outcomes)
    assert all(row[-1].startswith("not measured: ") for row in targets_sheet(outcomes).rows)


def test_only_takes_names_and_groups_and_refuses_others() -> None:
    names = [each.target.name for each in run_targets(TargetRuns(Suite()), ["P3", "D1:1 thread"])]
    assert names == ["D1:1 thread", "P3:2048", "P3:4096"]
    with pytest.raises(ConfigError, match="no target 'D9'"):
        run_targets(TargetRuns(Suite()), ["D9"])


def test_suite_is_read_relative_to_its_file(tmp_path: Path) -> None:
    for name, text in (
        ("suite.toml", 'int8 = "c8"\npairs = 5\n'),
        ("suite.json", '{"int8": "c8", "pairs": 5}'),
    ):
        (tmp_path / name).write_text(text)
        suite = read_suite(tmp_path / name)
        assert suite.int8 == tmp_path / "c8"
        assert suite.pairs == 5
    assert merge(suite, {"int8": None, "int4": tmp_path}).int8 == tmp_path / "c8"


@pytest.mark.parametrize(
    "text", ['int9 = "x"', "pairs = 0", "pairs = true", "int8 = 3", "pairs", 'pairs = "two"']
)
def test_suite_with_mistakes_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "suite.toml").write_text(text)
    with pytest.raises(ConfigError):
        read_suite(tmp_path / "suite.toml")


def test_markdown_escapes_what_would_break_a_table() -> None:
    text = Sheet("T", ("a", "b"), [("1|2", "x")]).to_markdown()
    assert text.splitlines() == ["## T", "", "| a | b |", "|---|---|", "| 1\\|2 | x |"]


def test_interrupted_run_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(runs: TargetRuns) -> tuple[float, str]:
        raise KeyboardInterrupt

    monkeypatch.setitem(VALUES, "D1", lambda _: (0.9, "measured"))
    monkeypatch.setitem(VALUES, "D1:avx2", interrupt)
    outcomes = {each.target.name: each for each in run_targets(TargetRuns(Suite()), ["D1", "D2"])}
    assert outcomes["D1"].value == 0.9
    assert outcomes["D1:1 thread"].reason == "no container: --int8"
    assert {outcomes[name].reason for name in ("D1:avx2", "D2", "D2:avx2")} == {"interrupted"}


def test_crash_of_one_measurement_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(runs: TargetRuns) -> tuple[float, str]:
        raise RuntimeError("ended by SIGSEGV")

    monkeypatch.setitem(VALUES, "L1", crash)
    monkeypatch.setitem(VALUES, "O1", lambda _: (0.01, ""))
    crashed, other = run_targets(TargetRuns(Suite()), ["L1", "O1"])
    assert crashed.reason == "ended by SIGSEGV"
    assert other.verdict == "aim"


def report_of(outcomes: list[Outcome]) -> dict[str, object]:
    setting = {"threads": 2, "load": "mmap", "repack": 0}
    trial = {"setting": setting, "decode": 3.5, "prefill": 9.0, "problem": "", "label": "as given"}
    targets = [each.to_dict() for each in outcomes]
    return {"targets": targets, "rows": {"a row": {"figures": {}}}, "trials": {"search": [trial]}}


def test_a_run_goes_on_from_what_an_earlier_report_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "targets.json"
    path.write_text(json.dumps(report_of([outcome("D1", 0.9, "then"), outcome("D2", None, "no")])))
    earlier = read_report(path)
    assert earlier.rows == {"a row": {"figures": {}}}
    assert earlier.trials["search"][0].setting.load == "mmap"
    monkeypatch.setitem(VALUES, "D1", lambda _: (0.1, "measured again"))
    monkeypatch.setitem(VALUES, "D2", lambda _: (0.8, "now"))
    outcomes = run_targets(TargetRuns(Suite()), ["D1", "D2"], measured=earlier.outcomes)
    found = {each.target.name: (each.value, each.reason) for each in outcomes}
    assert (found["D1"], found["D2"]) == ((0.9, "then"), (0.8, "now"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"targets": [1], "rows": {}, "trials": {}}'])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="not a report of"):
        read_report(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_report(tmp_path / "absent.json")
