"""`doctor` prints a line for each topic, writes the same as JSON, and its exit code says whether anything fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sparseflow.cli.main import main


def _document(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def _line(document: dict[str, Any], name: str) -> dict[str, str]:
    (line,) = [check for check in document["checks"] if check["name"] == name]
    assert set(line) == {"name", "verdict", "found", "remedy"}
    return line


def test_machine_alone_prints_every_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    for topic in ("software", "instruction set", "self-test", "cpu", "memory", "huge pages"):
        assert f" {topic} " in output
    assert "container" not in output


def test_container_adds_its_lines(tiny_int4: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = _document(capsys, str(tiny_int4), "--ram", "1G")
    assert code == 0
    assert document["container"] == str(tiny_int4)
    assert document["verdict"] in ("ok", "warn")
    assert "experts stay in memory" in _line(document, "memory budget")["found"]
    assert "GB/s" in _line(document, "read speed")["found"]
    assert "every byte" not in [check["name"] for check in document["checks"]]


def test_json_goes_to_a_file_and_the_table_to_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "doctor.json"
    assert main(["doctor", "--json", str(path)]) == 0
    assert "self-test" in capsys.readouterr().out
    assert json.loads(path.read_text(encoding="utf-8"))["container"] is None


def test_deep_finds_a_byte_that_the_quick_look_passes_over(
    tiny_int4: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    container = shutil.copytree(tiny_int4, tmp_path / "container")
    path = sorted(container.glob("**/*.sfi"))[0]
    data = bytearray(path.read_bytes())
    data[-70] ^= 1  # in the last expert of the first layer
    path.write_bytes(data)
    assert _document(capsys, str(container), "--ram", "1G")[0] == 0
    code, document = _document(capsys, str(container), "--ram", "1G", "--deep")
    line = _line(document, "every byte")
    assert (code, document["verdict"], line["verdict"]) == (1, "fail", "fail")
    assert path.name in line["found"]
    assert "sparseflow verify" in line["remedy"]


def test_deep_of_a_whole_container_is_ok(
    tiny_int4: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = _document(capsys, str(tiny_int4), "--deep")
    assert code == 0
    assert _line(document, "every byte")["verdict"] == "ok"


def test_container_that_does_not_fit_fails(
    tiny_int4: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = _document(capsys, str(tiny_int4), "--ram", "1M")
    assert code == 1
    assert _line(document, "memory budget")["verdict"] == "fail"


def test_directory_that_is_no_container_is_a_failing_line_beside_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = _document(capsys, str(tmp_path))
    assert code == 1
    assert "manifest.json" in _line(document, "container")["found"]
    assert _line(document, "self-test")["verdict"] == "ok"


def test_threads_beyond_the_machine_are_a_warning_not_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import os

    code, document = _document(capsys, "--threads", str(len(os.sched_getaffinity(0)) + 1))
    assert code == 0
    assert _line(document, "cpu")["verdict"] == "warn"


@pytest.mark.parametrize("words", [["--deep"], ["no such model"], ["demo", "--isa", "sse9"]])
def test_wrong_words_are_errors(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 10
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_a_cell_holds_is_never_markup(
    tiny_int4: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    container = shutil.copytree(tiny_int4, tmp_path / "[red]x[bold]")
    assert main(["doctor", str(container)]) == 0
    assert "[red]x[bold]" in capsys.readouterr().out
