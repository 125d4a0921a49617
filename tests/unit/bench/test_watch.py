"""What is seen of a program from outside, its children included."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparseflow.bench.cell import start
from sparseflow.bench.watch import Watch
from sparseflow.errors import BudgetError, StorageError

WORK = "x = bytearray(32 << 20)\nfor i in range(3_000_000): pass\n"
WAIT = "print('done', flush=True); import sys; sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK + WAIT!r}])"


@pytest.fixture(params=[WORK + WAIT, PARENT], ids=["itself", "in a child"])
def worker(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A program that has worked and waits."""
    command = [sys.executable, "-c", request.param]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"done\n"
        yield process
        process.stdin.close()


def test_cpu_time_and_reads_of_a_program_and_its_child_are_seen(
    worker: subprocess.Popen[bytes],
) -> None:
    watch = Watch(worker.pid, None)
    watch.sample()
    seen = watch.to_dict()
    assert seen["cpu_seconds"] > 0
    assert seen["read_bytes"] is None or seen["read_bytes"] >= 0
    assert seen["anonymous_peak_bytes"] > 0
    assert seen["limit_bytes"] is None


def test_program_that_has_gone_keeps_its_last_values() -> None:
    watch = Watch(2**22 + 1, None)
    watch.sample()
    assert watch.to_dict()["cpu_seconds"] == 0


def test_memory_of_a_program_is_sampled_before_it_ends(tmp_path: Path) -> None:
    seen = start([sys.executable, "-c", WORK + WAIT], tmp_path, None)
    assert seen["anonymous_peak_bytes"] >= 32 << 20
    assert seen["peak_bytes"] >= seen["anonymous_peak_bytes"]


def test_killed_program_was_out_of_memory(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(BudgetError, match="out of memory"):
        start([sys.executable, "-c", code], tmp_path, None)


def test_program_that_crashes_is_told_with_its_signal(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGABRT)"
    with pytest.raises(RuntimeError, match="SIGABRT"):
        start([sys.executable, "-c", code], tmp_path, None)


def test_error_of_a_program_keeps_its_kind(tmp_path: Path) -> None:
    code = "import sys; print('sparseflow: the disk is gone', file=sys.stderr); sys.exit(14)"
    with pytest.raises(StorageError, match=r"^the disk is gone$"):
        start([sys.executable, "-c", code], tmp_path, None)
