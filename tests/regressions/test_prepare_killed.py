"""prepare killed with SIGKILL again and again: it goes on where it was, and the container is the same to the byte."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from make_synthetic_checkpoint import make, parse_options

PEAK_BYTES = 700 << 20
DENSE = "dense.safetensors"

# The child reports the bytes that it read. Its peak memory is reported by a small launcher, since the peak of a process
# begins with that of the one that it was forked from.
CHILD = """
import sys
from sparseflow.cli.main import main
code = main(sys.argv[2:])
with open("/proc/self/io") as io, open(sys.argv[1], "w") as report:
    report.write(io.read())
sys.exit(code)
"""
LAUNCHER = """
import json, os, signal, sys
pid = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
print(pid, flush=True)
_, status, usage = os.wait4(pid, 0)
with open(sys.argv[1], "w") as report:
    json.dump([os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024], report)
"""


@dataclass(frozen=True)
class Preparation:
    """`sparseflow prepare` of one source into one directory, as often as it takes."""

    source: Path
    output: Path
    reports: Path

    def start(self) -> tuple[subprocess.Popen[str], int]:
        """The launcher, and the process id of the command."""
        words = ["prepare", str(self.source), "--output", str(self.output), "--quiet"]
        child = [sys.executable, "-c", CHILD, str(self.reports / "io"), *words]
        launcher = subprocess.Popen(
            [sys.executable, "-ISc", LAUNCHER, str(self.reports / "end"), *child],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert launcher.stdout is not None
        return launcher, int(launcher.stdout.readline())

    def end(self, launcher: subprocess.Popen[str]) -> tuple[int, int]:
        """Exit code (negative: the signal) and peak memory of a command that ends or has ended."""
        launcher.communicate()
        exit_code, peak_bytes = json.loads((self.reports / "end").read_text())
        return exit_code, peak_bytes

    def run(self) -> tuple[int, int, int]:
        """To its end: exit code, peak memory, bytes read (all reads, cached or not)."""
        launcher, _ = self.start()
        exit_code, peak_bytes = self.end(launcher)
        fields = dict(line.split(": ") for line in (self.reports / "io").read_text().splitlines())
        return exit_code, peak_bytes, int(fields["rchar"])

    def unfinished_bytes(self, name: str) -> int:
        """Bytes of a file's temporary file, -1 if there is none."""
        try:
            return (self.output / ".prepare" / name.replace("/", "-")).stat().st_size
        except FileNotFoundError:
            return -1

    def kill_inside(self, name: str, nbytes: int) -> tuple[int, int]:
        """Starts, and kills when so much of the file is written (-1: before it is begun); signal and peak memory."""
        launcher, pid = self.start()
        while launcher.poll() is None and not (self.output / name).exists():
            if self.unfinished_bytes(name) >= nbytes:
                break
            time.sleep(0.001)
        with contextlib.suppress(
            ProcessLookupError
        ):  # it ended by itself; its exit code will say so
            os.kill(pid, signal.SIGKILL)
        return self.end(launcher)


def identities(output: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of every finished file."""
    files = [path for path in output.rglob("*") if path.is_file() and ".prepare" not in path.parts]
    return {
        str(path.relative_to(output)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in files
    }


def check_same(output: Path, reference: Path) -> None:
    """Same files, hidden ones included, with the same bytes."""
    names = {str(path.relative_to(reference)) for path in reference.rglob("*")}
    assert {str(path.relative_to(output)) for path in output.rglob("*")} == names
    files = [name for name in names if (reference / name).is_file()]
    assert filecmp.cmpfiles(reference, output, files, shallow=False) == (
        sorted(files, key=files.index),
        [],
        [],
    )


def kill_and_check(source: Path, directory: Path, kills: list[tuple[str, float]]) -> None:
    """Kills inside the named files at the named shares of their bytes, then lets it end and checks everything."""
    (directory / "reports").mkdir()
    reference = Preparation(source, directory / "reference", directory / "reports")
    exit_code, peak_bytes, all_read = reference.run()
    assert exit_code == 0
    sizes = {
        str(path.relative_to(reference.output)): path.stat().st_size
        for path in reference.output.rglob("*")
    }
    killed = Preparation(source, directory / "killed", directory / "reports")
    peaks, in_payload, before = [peak_bytes], 0, {}
    for name, share in kills:
        exit_code, peak_bytes = killed.kill_inside(name, int(share * sizes[name]))
        assert exit_code == -signal.SIGKILL
        assert not (killed.output / "manifest.json").exists()
        peaks.append(peak_bytes)
        in_payload += killed.unfinished_bytes(name) > 0
        now = identities(killed.output)
        assert now.items() >= before.items()
        before = now
    exit_code, peak_bytes, last_read = killed.run()
    assert exit_code == 0
    assert identities(killed.output).items() >= before.items()
    check_same(killed.output, reference.output)
    # A file is read once when it is hashed; skipping more than that means that its source was not read either.
    finished = sum(sizes[name] for name in before)
    assert last_read <= all_read - 1.5 * finished
    assert max([*peaks, peak_bytes]) <= PEAK_BYTES
    assert in_payload >= 0.75 * len(kills)
    read = f"the last run read {last_read >> 20} of {all_read >> 20} MiB"
    print(f"{len(kills)} kills, {in_payload} in a payload; peak {max(peaks) >> 20} MiB; {read}")


def kill_plan(num_layers: int, per_file: int, seed: int) -> list[tuple[str, float]]:
    """One kill before anything is written, then so many in every file, at random places."""
    shares = random.Random(seed)
    names = [DENSE, *(f"experts/layer_{layer:03d}.sfi" for layer in range(num_layers))]
    return [
        (DENSE, -1.0),
        *((name, shares.uniform(0, 0.9)) for name in names for _ in range(per_file)),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_prepare_of_a_tiny_model_goes_on(tmp_path: Path) -> None:
    words = [
        "--tiny",
        "--layers",
        "2",
        "--order",
        "adversarial",
        "--shards",
        "3",
        str(tmp_path / "source"),
    ]
    kill_and_check(make(parse_options(words)), tmp_path, kill_plan(2, 1, seed=1))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_interrupted_prepare_exits_130_and_goes_on(tmp_path: Path) -> None:
    source = make(parse_options(["--tiny", "--layers", "12", str(tmp_path / "source")]))
    (tmp_path / "reports").mkdir()
    reference = Preparation(source, tmp_path / "reference", tmp_path / "reports")
    assert reference.run()[0] == 0
    interrupted = Preparation(source, tmp_path / "interrupted", tmp_path / "reports")
    launcher, pid = interrupted.start()
    while not (interrupted.output / DENSE).exists():
        time.sleep(0.001)
    os.kill(pid, signal.SIGINT)
    assert interrupted.end(launcher)[0] == 130
    assert not (interrupted.output / "manifest.json").exists()
    before = identities(interrupted.output)
    assert DENSE in before
    assert interrupted.run()[0] == 0
    assert identities(interrupted.output).items() >= before.items()
    check_same(interrupted.output, reference.output)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_prepare_of_four_true_layers_goes_on(tmp_path: Path) -> None:
    words = [
        "--true-geometry",
        "--layers",
        "4",
        "--order",
        "adversarial",
        "--shards",
        "7",
        str(tmp_path / "source"),
    ]
    try:
        kill_and_check(make(parse_options(words)), tmp_path, kill_plan(4, 4, seed=2)[:-1])
    finally:
        for name in ("source", "reference", "killed"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
