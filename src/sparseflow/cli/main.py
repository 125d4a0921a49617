"""The entry point: registers the commands and turns every error into one line on stderr and an exit code."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from sparseflow.cli import bench, evaluate, inspect, models, prepare, replay, run, verify
from sparseflow.errors import SparseFlowError, StorageError

USAGE_EXIT_CODE = 2
INTERNAL_EXIT_CODE = 70
INTERRUPTED_EXIT_CODE = 130

# typer carries its own click since 0.20 and needs the package before; this base class is in both.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="sparseflow",
    help="Runs Mixture-of-Experts language models bigger than memory on an ordinary CPU, bit for bit exactly.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(run.run)
app.command("inspect")(inspect.inspect)
app.command("prepare")(prepare.prepare)
app.command("verify")(verify.verify)
app.command("bench")(bench.bench)
app.command("replay")(replay.replay)
app.command("list")(models.list_models)
app.command("remove")(models.remove)
app.add_typer(evaluate.app, name="eval")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"sparseflow {version('sparseflow')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback", help="Let errors through as Python tracebacks (for bug reports)."
        ),
    ] = False,
) -> None:
    del version, traceback


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns 0 ok, 1 negative verdict, 2 usage, 10-15 an error of errors.py, 130 interrupted."""
    words = separate_json_file(list(sys.argv[1:] if arguments is None else arguments)) or ["--help"]
    words = complete_recipe(words)
    try:
        return _run_command(words)
    except Exception as error:
        if "--traceback" in words[:1]:
            raise
        return _report(error)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED_EXIT_CODE)
    finally:
        _flush()


def separate_json_file(words: list[str]) -> list[str]:
    """`--json FILE` and `--json` alone become `--json=FILE` and `--json=-`, which need no guess about the next word."""
    separated: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            return separated + words[position:]
        if word == "--json":
            following = words[position + 1] if position + 1 < len(words) else ""
            is_file = following == "-" or following.endswith(".json")
            separated.append(f"--json={following if is_file else '-'}")
            position += 2 if is_file else 1
            continue
        separated.append(word)
        position += 1
    return separated


def complete_recipe(words: list[str]) -> list[str]:
    """`--recipe` without a value, which asks for the recipes that there are, becomes `--recipe=list`."""
    end = words.index("--") if "--" in words else len(words)
    return [
        "--recipe=list"
        if word == "--recipe" and i < end and (i + 1 == end or words[i + 1].startswith("-"))
        else word
        for i, word in enumerate(words)
    ]


def _run_command(words: list[str]) -> int:
    first = next((word for word in words if word != "--traceback"), "--help")
    known = _command_names()
    if not first.startswith("-") and first not in known:
        return _fail(
            _what_was_meant(first, words[words.index(first) + 1 :], known), USAGE_EXIT_CODE
        )
    result = app(words, prog_name="sparseflow", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _command_names() -> list[str]:
    commands = [command.name for command in app.registered_commands]
    groups = [group.name for group in app.registered_groups]
    return [name for name in commands + groups if isinstance(name, str)]


def _what_was_meant(first: str, rest: list[str], known: list[str]) -> str:
    """The error for a first word that is not a command: a misspelt command, a model, or a prompt."""
    close = difflib.get_close_matches(first, known, n=1, cutoff=0.75)
    if close:
        return f"no command {first!r}; did you mean: sparseflow {close[0]}"
    if models.looks_like_model(first):
        words = " ".join([first, *(repr(word) for word in rest[:1])])
        return f"no command {first!r}; did you mean: sparseflow run {words}"
    return models.unknown_model_message(first)


def _report(error: Exception) -> int:
    """One line on stderr and the exit code of an error that ended a command."""
    if isinstance(error, SparseFlowError):
        return _fail(str(error), error.exit_code)
    if isinstance(error, _UsageError):
        message = getattr(error, "format_message", error.__str__)()
        return _fail(message, int(getattr(error, "exit_code", USAGE_EXIT_CODE)))
    if isinstance(error, typer.Abort):
        return _fail("interrupted", INTERRUPTED_EXIT_CODE)
    if isinstance(error, BrokenPipeError):
        _discard_stdout()
        return 0
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", StorageError.exit_code)
    return _fail(
        f"internal error: {type(error).__name__}: {error}; this is a bug, `sparseflow --traceback ...` shows where",
        INTERNAL_EXIT_CODE,
    )


def _fail(message: str, exit_code: int) -> int:
    print(f"sparseflow: {' '.join(message.split())}", file=sys.stderr)
    return exit_code


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()


def _discard_stdout() -> None:
    """The reader has gone: nothing more can be written, and the interpreter must not try at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
