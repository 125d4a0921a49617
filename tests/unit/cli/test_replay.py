"""`replay`: a table, a report and a picture from a file of routes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sparseflow.cli.main import main


@pytest.fixture
def routes(tmp_path: Path) -> Path:
    random = np.random.default_rng(4)
    path = tmp_path / "routes.npz"
    ids = np.array([[random.choice(16, 2, replace=False) for _ in range(3)] for _ in range(20)])
    decode = np.arange(20) >= 5
    np.savez(path, sessions=["a"], a_experts=ids, a_tokens=np.arange(20), a_decode=decode)
    return path


def test_a_table_shows_every_session_and_the_mean(
    routes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(routes), "--capacity=50%", "--num-experts=16"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert any(row[1:6:2] == ["24", "50.0%", "a"] for row in rows if len(row) > 6)
    assert any("mean" in row for row in rows)


def test_a_report_holds_misses_and_the_best_possible(
    routes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--capacity=24", "--capacity=48", "--policy=lru", "--heat-from-others", "--json"]
    assert main(["replay", str(routes), *flags]) == 0
    small, full = json.loads(capsys.readouterr().out)["replays"]
    assert (small["policy"], small["slots"], small["heat_from_others"]) == ("lru", 24, True)
    assert small["sessions"][0]["misses"] > full["sessions"][0]["misses"]
    assert small["belady_miss_rate"] <= small["miss_rate"]


def test_a_picture_is_drawn(routes: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(["replay", str(routes), "--quiet", f"--plot={tmp_path / 'hits.svg'}"]) == 0
    assert "<svg" in (tmp_path / "hits.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--capacity=half"], 10),
        (["--policy=belady"], 10),
        (["--num-experts=3"], 10),
    ],
)
def test_wrong_flags_are_one_line(
    routes: Path, words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(routes), *words]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1
