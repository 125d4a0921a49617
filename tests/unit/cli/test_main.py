"""Exit codes and one-line errors of the command line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sparseflow.cli import main as entry
from sparseflow.cli.main import main, separate_json_file
from sparseflow.errors import (
    BudgetError,
    CheckpointError,
    ConfigError,
    ContainerError,
    SparseFlowError,
    StorageError,
    UnsupportedError,
)


def _error_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sparseflow 0.")


def test_version_loads_neither_numpy_nor_the_extension() -> None:
    code = (
        "import sys; from sparseflow.cli.main import main; main(['--version']);"
        "sys.exit(any(m in sys.modules for m in ('numpy', 'tokenizers', 'sparseflow.native._ext')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_words_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Usage: sparseflow" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["Once upon a time"], ["run", "Once upon a time"]])
def test_prompt_in_the_models_place_is_answered_with_the_right_command(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) in (2, ConfigError.exit_code)
    wanted = "no model 'Once upon a time'; did you mean: sparseflow run demo 'Once upon a time'"
    assert _error_line(capsys) == f"sparseflow: {wanted}"


def test_model_in_the_commands_place_is_answered_with_the_right_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["demo", "a tale"]) == 2
    assert "did you mean: sparseflow run demo 'a tale'" in _error_line(capsys)


def test_misspelt_command_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["remov", "x"]) == 2
    assert _error_line(capsys) == "sparseflow: no command 'remov'; did you mean: sparseflow remove"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", "--no-such-flag"], 2),
        (["run", "demo", "x", "--ctx", "many"], 2),
        (["run", "demo", "x", "--ram", "8Q"], 10),
        (["run", "demo", "x", "--temperature", "-1"], 10),
        (["run", "demo", "x", "--isa", "sse9"], 10),
        (["run", "demo", "x", "--thinking", "maybe"], 10),
        (["remove", "no-such-container"], 10),
    ],
)
def test_wrong_words_end_in_one_line_and_a_code(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    assert _error_line(capsys).startswith("sparseflow: ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a"), 10),
        (CheckpointError("a"), 11),
        (ContainerError("a"), 12),
        (UnsupportedError("a"), 13),
        (StorageError("a"), 14),
        (BudgetError("a"), 15),
        (FileNotFoundError(2, "No such file or directory", "x"), 14),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("two\nlines"), 70),
    ],
)
def test_each_kind_of_error_has_its_exit_code(
    error: BaseException,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(entry, "app", fail)
    monkeypatch.setattr(entry, "_command_names", lambda: ["run"])
    assert main(["run"]) == code
    assert "Traceback" not in _error_line(capsys)


def test_traceback_is_let_through_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SparseFlowError("a")

    monkeypatch.setattr(entry, "app", fail)
    monkeypatch.setattr(entry, "_command_names", lambda: ["run"])
    with pytest.raises(SparseFlowError):
        main(["--traceback", "run"])


@pytest.mark.parametrize(
    ("words", "separated"),
    [
        (["run", "--json", "demo", "text"], ["run", "--json=-", "demo", "text"]),
        (["run", "--json", "out.json", "demo"], ["run", "--json=out.json", "demo"]),
        (["run", "demo", "--json"], ["run", "demo", "--json=-"]),
        (["run", "--json=x", "demo"], ["run", "--json=x", "demo"]),
        (["run", "demo", "--", "--json"], ["run", "demo", "--", "--json"]),
    ],
)
def test_json_takes_a_file_only_if_the_next_word_is_one(
    words: list[str], separated: list[str]
) -> None:
    assert separate_json_file(words) == separated


def test_closed_pipe_is_no_error() -> None:
    code = "import sys; from sparseflow.cli.main import main; sys.exit(main(['run', '--help']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
