"""One measured run: what it is, and how it is started, watched and ended in a process of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparseflow.bench import enter
from sparseflow.bench.limits import MemoryGroup
from sparseflow.bench.watch import Watch
from sparseflow.errors import BudgetError, SparseFlowError, StorageError

DONE = b"done\n"
"""What a program prints when its work is over and its counters may be read."""
CHILD = (sys.executable, "-m", "sparseflow.bench.child")


@dataclass(frozen=True, slots=True)
class Cell:
    """A prompt, then single tokens, under one configuration."""

    container: str
    prompt: Sequence[int]
    """Token ids."""
    new: int = 1
    """Tokens whose steps are measured, after the first one and `warm_up` more."""
    warm_up: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of EngineConfig."""
    counts_routes: bool = False
    """Whether the experts that the prompt touches are counted."""
    hashes_logits: bool = False
    """Whether the logits of every step are hashed, which takes some time."""

    def to_dict(self) -> dict[str, Any]:
        """All but the ids, of which it tells the number."""
        return {**asdict(self), "prompt": len(self.prompt), "config": dict(self.config)}


def run_cell(cell: Cell, group: MemoryGroup | None = None) -> dict[str, Any]:
    """The child's report (child.py) with what its parent saw: `spawned`, `watch`.

    Raises the error that the child reported, BudgetError if it was killed for memory.
    """
    with tempfile.TemporaryDirectory(prefix="sparseflow-bench-") as directory:
        spec, out = Path(directory) / "cell.json", Path(directory) / "report.json"
        spec.write_text(json.dumps(asdict(cell)), encoding="utf-8")
        spawned = time.monotonic()
        watch = start([*CHILD, str(spec), str(out)], Path(directory), group)
        report: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    clock = report["clock"]
    report["start"] = {
        "interpreter_seconds": clock["started"] - spawned,
        "import_seconds": clock["imported"] - clock["started"],
        "open_seconds": clock["opened"] - clock["imported"],
        "first_token_seconds": clock["first_token"] - clock["opened"],
        "total_seconds": clock["first_token"] - spawned,
    }
    return {**report, "watch": watch}


def start(command: Sequence[str], directory: Path, group: MemoryGroup | None) -> dict[str, Any]:
    """Runs a program to its end, in the group if there is one, and returns what was seen of it meanwhile.

    A program that prints a line `done` and then waits for its standard input to end is sampled in between, while its
    counters are complete. Raises the error that its last line and exit code say.
    """
    words = list(command)
    if group is not None:
        words = [sys.executable, "-S", "-E", enter.__file__, str(group.procs), *words]
    log = directory / "log.txt"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        try:
            watch = Watch(process.pid, group)
            _follow(process, watch)
            code = process.wait()
        finally:
            _end(process)
    if code != 0:
        raise _failure(code, log, watch)
    return watch.to_dict()


def _follow(process: subprocess.Popen[bytes], watch: Watch) -> None:
    """Samples until the program ends or says that it has done its work."""
    assert process.stdin is not None
    assert process.stdout is not None
    text = b""
    while DONE not in text:
        watch.sample()
        ready, _, _ = select.select([process.stdout], [], [], watch.interval)
        piece = os.read(process.stdout.fileno(), 65536) if ready else b""
        if ready and not piece:
            break
        text = (text + piece)[-2 * len(DONE) :]
    watch.sample()
    watch.look_closely()
    process.stdin.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever happened, the program is gone and its pipes are closed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _failure(code: int, log: Path, watch: Watch) -> Exception:
    """The error that a program's end means."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1].removeprefix("sparseflow: ") if lines else "no message"
    if watch.oom_kills or code == -signal.SIGKILL:
        return BudgetError("killed: out of memory under the limit")
    if code < 0:
        return RuntimeError(f"ended by {signal.Signals(-code).name}: {last}")
    for kind in SparseFlowError.__subclasses__():
        if kind.exit_code == code:
            return kind(last)
    return StorageError(f"a measured program ended with exit code {code}: {last}")
