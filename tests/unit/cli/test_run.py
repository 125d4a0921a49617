"""`run` on the golden model: what goes to stdout and stderr, what the report holds, how Ctrl-C ends it."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparseflow.cli.main import main

GREEDY = ["--temperature=0", "--ignore-eos"]


def _report(container: Path, report: Path, *flags: str) -> dict[str, Any]:
    code = main(["run", str(container), "a tale", *GREEDY, *flags, "--quiet", f"--json={report}"])
    assert code == 0
    document: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return document


@pytest.fixture
def report(tiny_moe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document = _report(
        tiny_moe, tmp_path / "report.json", "--max-new-tokens=12", "--store=streaming"
    )
    assert capsys.readouterr().err == ""
    return document


def test_text_goes_to_stdout_and_one_line_of_statistics_to_stderr(
    tiny_moe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tiny_moe), "a tale", *GREEDY, "--max-new-tokens=5"]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("\n")
    (line,) = captured.err.splitlines()
    assert re.search(r"tok/s.*hit rate.*read .*leases 0$", line)


def test_report_holds_the_ids_and_a_hash_for_every_step(report: dict[str, Any]) -> None:
    assert len(report["ids"]) == 12
    assert len(report["logits_sha256"]) == 12
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in report["logits_sha256"])
    assert report["finish_reason"] == "length"
    assert report["leases"] == 0


def test_report_counts_what_the_store_did(report: dict[str, Any]) -> None:
    experts = report["experts"]
    assert experts["hits"] + experts["misses"] > 0
    assert experts["bytes_read"] > 0
    assert experts["evictions"] >= 0
    assert report["store"] == "streaming"


def test_seconds_of_the_report_add_up(report: dict[str, Any]) -> None:
    timings = report["timings"]
    total = timings["total_seconds"]
    named = sum(v for k, v in timings.items() if k not in ("total_seconds", "unaccounted_seconds"))
    assert named == pytest.approx(total - timings["unaccounted_seconds"])
    assert abs(timings["unaccounted_seconds"]) <= 0.02 * total
    assert {"load_seconds", "prefill_seconds", "decode_seconds"} <= timings.keys()


def test_memory_is_split_by_kind(report: dict[str, Any]) -> None:
    memory = report["memory"]
    assert memory["anonymous_bytes"] > 0
    assert memory["file_bytes"] > 0
    assert memory["page_cache_bytes"] >= 0
    assert memory["budget"]["total_bytes"] <= memory["budget"]["ram_bytes"]


def test_report_names_the_container_by_its_manifest(report: dict[str, Any], tiny_moe: Path) -> None:
    import hashlib

    manifest = (tiny_moe / "manifest.json").read_bytes()
    assert report["container"]["manifest_sha256"] == hashlib.sha256(manifest).hexdigest()


def test_same_run_gives_the_same_steps(tiny_moe: Path, tmp_path: Path) -> None:
    one = _report(tiny_moe, tmp_path / "1.json", "--max-new-tokens=8", "--threads=1")
    two = _report(
        tiny_moe, tmp_path / "2.json", "--max-new-tokens=8", "--threads=2", "--isa=portable"
    )
    assert one["logits_sha256"] == two["logits_sha256"]


def test_json_on_stdout_is_all_that_stands_there(
    tiny_moe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tiny_moe), "a tale", "--max-new-tokens=2", *GREEDY, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] > 0


def test_prompt_is_read_from_stdin(
    tiny_moe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--raw", "--max-new-tokens=3", "--quiet", *GREEDY]
    assert main(["run", str(tiny_moe), "a tale", *flags]) == 0
    given = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("a tale"))
    assert main(["run", str(tiny_moe), "-", *flags]) == 0
    assert capsys.readouterr().out == given


def test_empty_prompt_is_refused(tiny_moe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tiny_moe), ""]) == 10
    assert "the prompt is empty" in capsys.readouterr().err


def test_prompt_beyond_the_context_is_refused_with_both_counts(
    tiny_moe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tiny_moe), "word " * 40, "--raw", "--ctx=8"]) == 10
    assert re.search(r"\d+ tokens and the context 8", capsys.readouterr().err)


def test_what_cannot_fit_is_refused_before_loading(
    tiny_moe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tiny_moe), "a tale", "--ram=1M"]) == 15
    assert "dense weights" in capsys.readouterr().err


def test_interrupt_ends_the_answer_with_no_lease_left(tiny_moe: Path) -> None:
    command = [sys.executable, "-m", "sparseflow.cli.main", "run", str(tiny_moe), "a tale"]
    with subprocess.Popen(
        [*command, *GREEDY, "--raw", "--max-new-tokens=100000", "--store=streaming"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)  # the answer has begun
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.rstrip().endswith("leases 0")
    assert "Traceback" not in errors
