"""A row's process: its report is read, and however it ends otherwise, the reason is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sparseflow.evaluation import row_process
from sparseflow.evaluation.ladder import Outcome, Row
from sparseflow.evaluation.row_process import RowProcess
from sparseflow.native import _ext

REPORT = '{"logits_sha256": ["a"], "ids": [1], "isa": "portable", "experts": {"evictions": 0}}'
WRITE_REPORT = f"""
import sys
path = next(word for word in sys.argv if word.startswith('--json='))[len('--json='):]
open(path, 'w').write('''{REPORT}''')
"""

Launch = Callable[[str, Row], Outcome]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Runs a row whose program is the given Python code."""

    def run(code: str, row: Row) -> Outcome:
        monkeypatch.setattr(row_process, "COMMAND", (sys.executable, "-c", code))
        return RowProcess(tmp_path, "prompt", 2)(row)

    return run


def test_report_of_a_row_is_read(launch: Launch) -> None:
    outcome = launch(WRITE_REPORT, Row())
    assert outcome.steps == ["a:1"]
    assert not outcome.failure


def test_error_of_a_row_is_told_with_its_code(launch: Launch) -> None:
    code = (
        "import sys; print('noise'); print('sparseflow: disk gone', file=sys.stderr); sys.exit(14)"
    )
    assert launch(code, Row()).failure == "exit code 14: sparseflow: disk gone"


def test_signal_of_a_row_is_named(launch: Launch) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    assert launch(code, Row()).failure == "ended by SIGILL"


def test_instruction_set_that_this_cpu_lacks_is_not_run(launch: Launch) -> None:
    assert "unheard-of" not in _ext.isa_names()
    assert launch("raise SystemExit(1)", Row(isa="unheard-of")).not_run.startswith("unheard-of")


def test_arguments_say_all_that_a_row_varies(launch: Launch) -> None:
    code = "import sys; print(*sys.argv[1:]); sys.exit(1)"
    row = Row("streaming", 4096, "lru", 3, 7, "portable", direct_io=False)
    told = launch(code, row).failure
    for flag in (
        "--store=streaming --policy=lru --threads=3 --prefill-chunk=7 --isa=portable",
        "--cache=4096 --no-direct-io",
        "--temperature=0 --repetition-penalty=1 --presence-penalty=0 --ignore-eos --max-new-tokens=2",
    ):
        assert flag in told


def test_forked_row_ends_as_a_started_one_does(tmp_path: Path) -> None:
    assert row_process._fork(["run", str(tmp_path / "absent"), "x"], tmp_path / "log.txt") == 10
    assert "no model" in (tmp_path / "log.txt").read_text(encoding="utf-8")
