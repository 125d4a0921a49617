"""Runs one row of the ladder in a process of its own: `python -m sparseflow.cli.main run ... --json FILE`.

Under an emulator such as `qemu-x86_64 -cpu Nehalem python ...` a new process would run on the machine's real CPU and
prove nothing about the emulated one. A probe finds that out; rows are then forked, which stays inside the emulator.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sparseflow.evaluation.ladder import Outcome, Row
from sparseflow.native import _ext

MODULE = "sparseflow.cli.main"
COMMAND = (sys.executable, "-m", MODULE)
"""Starts the command line in a new process."""


class RowProcess:
    """Callable with a Row; the rows of one ladder share container, prompt and length."""

    def __init__(self, container: Path, prompt: str, new_tokens: int) -> None:
        self._fixed = [
            "run", str(container.resolve()), prompt, "--raw", "--temperature=0", "--repetition-penalty=1",
            "--presence-penalty=0", "--ignore-eos",
            f"--max-new-tokens={new_tokens}", "--quiet",
        ]  # fmt: skip
        self._isa_names = frozenset(_ext.isa_names())
        self._is_forking = self._isa_names != _isa_names_of_new_process()

    def __call__(self, row: Row) -> Outcome:
        if row.isa != "auto" and row.isa not in self._isa_names:
            return Outcome(row, not_run=f"{row.isa} (this CPU lacks it)")
        with tempfile.TemporaryDirectory(prefix="sparseflow-ladder-") as directory:
            report = Path(directory) / "report.json"
            log = Path(directory) / "log.txt"
            arguments = [*self._fixed, *row.arguments(), f"--json={report}"]
            run = _fork if self._is_forking else _spawn
            status = run(arguments, log)
            if status != 0:
                return Outcome(row, failure=_reason(status, log))
            return Outcome(row, report=json.loads(report.read_text(encoding="utf-8")))


def _spawn(arguments: Sequence[str], log: Path) -> int:
    command = [*COMMAND, *arguments]
    with log.open("wb") as output:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        )
    return done.returncode


def _isa_names_of_new_process() -> frozenset[str]:
    """What a new process of this interpreter can run. Differs from our own list only under an emulator."""
    code = "from sparseflow.native import _ext; print(' '.join(_ext.isa_names()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return frozenset(done.stdout.split())


def _fork(arguments: Sequence[str], log: Path) -> int:
    """The row in a forked child. Returns its exit code, or minus the signal that ended it, as subprocess does."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            with log.open("wb") as output, Path(os.devnull).open("rb") as nothing:
                os.dup2(nothing.fileno(), 0)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                sys.stdout = sys.stderr = os.fdopen(1, "w", encoding="utf-8", closefd=False)
                sys.argv = [MODULE, *arguments]
                sys.modules.pop(MODULE, None)  # runpy warns of a module that is there already
                runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _reason(status: int, log: Path) -> str:
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"exit code {status}: {lines[-1] if lines else 'no message'}"
