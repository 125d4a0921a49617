"""The pressure benchmark: what it calls a failure, what it prints, and a small run where groups can be made."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pressure
from pressure import Run, Sample, draw, find_problems, table
from sparseflow.bench.limits import MemoryGroup
from sparseflow.errors import UnsupportedError

MIB = 1 << 20
END: dict[str, Any] = {
    "hash": "ab", "shrinks": 2, "grows": 3, "least": 10 * MIB, "leases": 0, "warnings": [], "decode_seconds": 1.0,
}  # fmt: skip
SAMPLES = [
    Sample(0.0, 1, 64 * MIB, 64 * MIB, 60 * MIB, 100 * MIB, 0, is_taken=False),
    Sample(0.5, 5, 64 * MIB, 64 * MIB, 50 * MIB, 99 * MIB, 0, is_taken=True),
    Sample(0.7, 6, 10 * MIB, 12 * MIB, 10 * MIB, 46 * MIB, 60 * MIB, is_taken=True),
    Sample(1.0, 9, 64 * MIB, 64 * MIB, 50 * MIB, 99 * MIB, 0, is_taken=False),
]


def run_of(**changes: Any) -> Run:
    made = Run(list(SAMPLES), dict(END), 64 * MIB, 0, 0, has_taken=True)
    made.end |= changes
    return made


UNDISTURBED = run_of(shrinks=0)


def test_a_good_run_has_no_problems() -> None:
    assert find_problems(run_of(), UNDISTURBED) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hash": "cd"}, "logits differ"),
        ({"shrinks": 0}, "did not shrink"),
        ({"least": 64 * MIB}, "did not shrink"),
        ({"leases": 1}, "1 leases"),
        ({"warnings": ["not watched"]}, "not watched"),
    ],
)
def test_what_the_run_says_is_judged(changes: dict[str, Any], problem: str) -> None:
    assert [text for text in find_problems(run_of(**changes), UNDISTURBED) if problem in text]


def test_what_happened_in_the_group_is_judged() -> None:
    killed = run_of()
    killed.oom_kills = 1
    killed.has_taken = False
    assert len(find_problems(killed, UNDISTURBED)) == 2
    idle = run_of()
    idle.samples[2] = replace(SAMPLES[2], tokens=5)
    assert find_problems(idle, UNDISTURBED) == ["no token came meanwhile"]
    small = run_of()
    small.samples[-1] = replace(SAMPLES[-1], allowed=32 * MIB)
    assert find_problems(small, UNDISTURBED) == ["the arena did not grow back"]
    assert find_problems(run_of(), run_of(shrinks=1)) == ["the undisturbed run shrank 1 times"]


def test_a_run_that_broke_off_is_one_problem() -> None:
    assert find_problems(Run(exit_code=-9, oom_kills=1), UNDISTURBED) == [
        "the run ended with -9; 1 were killed for memory"
    ]


def test_the_table_has_few_rows() -> None:
    run = run_of()
    rows = table(run).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| 0.0", "| 0.5", "| 0.7", "| 1.0"]
    run.samples *= 50
    assert len(table(run).splitlines()) == 2 + pressure.MOST_ROWS


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(run_of(), 200 * MIB, tmp_path / "memory.svg")
    assert "</svg>" in (tmp_path / "memory.svg").read_text(encoding="utf-8")


def test_a_small_model_lives_through_it(tiny_moe: Path) -> None:
    try:
        MemoryGroup(256 * MIB).remove()
    except UnsupportedError as error:
        pytest.skip(str(error))
    command = [sys.executable, pressure.__file__, str(tiny_moe), "--take=96M", "--new=400"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 killed" in done.stdout
