"""The identity ladder through the command line: one hash in every row, and a wrong kernel does not pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparseflow.cli.main import main

WRONG_KERNEL = Path(__file__).with_name("wrong_kernel.py")


@pytest.fixture(scope="module")
def quick_ladder(tiny_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of `verify --ladder --quick` on the golden model."""
    report = tmp_path_factory.mktemp("ladder") / "ladder.json"
    code = main(["verify", str(tiny_moe), "--ladder", "--quick", "--quiet", f"--json={report}"])
    document: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    assert code == 0, document["verdict"]
    return document


def test_every_row_gives_one_hash(quick_ladder: dict[str, Any]) -> None:
    hashes = {row["sha256"] for row in quick_ladder["rows"] if not row["not_run"]}
    assert len(hashes) == 1
    assert quick_ladder["is_identical"]


def test_rows_report_what_the_store_did(quick_ladder: dict[str, Any]) -> None:
    streaming = [row for row in quick_ladder["rows"] if row["store"] == "streaming"]
    assert streaming
    for row in streaming:
        experts = row["experts"]
        assert experts["misses"] > 0
        assert experts["bytes_read"] > 0
        assert isinstance(experts["direct_io"], bool)
        assert (experts["evictions"] > 0) == row["must_evict"]


def test_absent_instruction_set_is_not_run_and_present_ones_are(
    quick_ladder: dict[str, Any],
) -> None:
    from sparseflow.native import _ext

    for row in quick_ladder["rows"]:
        if row["isa"] != "auto":
            assert bool(row["not_run"]) == (row["isa"] not in _ext.isa_names())


def test_wrong_kernel_is_found_and_its_first_step_named(tiny_moe: Path) -> None:
    command = [
        sys.executable,
        str(WRONG_KERNEL),
        "verify",
        str(tiny_moe),
        "--ladder",
        "--quick",
        "--quiet",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    last_line = done.stdout.splitlines()[-1]
    assert last_line.startswith("DIFFERENT: row 2 differs from row 1, first at step 6")
