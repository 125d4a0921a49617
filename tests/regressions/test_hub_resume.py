"""prepare ORG/NAME killed with SIGKILL again and again, while it downloads and while it converts: no byte that is here
is asked for again, the container is that of a local prepare to the byte, and the disk holds two shards more at most.
"""

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
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hub_server import Fault, Hub, serve

from make_synthetic_checkpoint import make, parse_options
from sparseflow.prepare.prepare import prepare

PEAK_MEMORY_BYTES = 700 << 20
DEVICE_BLOCK = 512
"""Bytes that st_blocks counts in."""


def used_bytes(directory: Path) -> int:
    """Allocated blocks of all files below a directory: holes not counted, names that go meanwhile passed over."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(parent, name).lstat().st_blocks * DEVICE_BLOCK
    return total


@dataclass
class Watch:
    """Looks at the disk all the time, and at the memory of the process that is at work."""

    directory: Path
    peak_disk: int = 0
    peak_memory: int = 0
    samples: int = 0
    pid: int | None = None
    _end: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[Watch]:
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield self
        finally:
            self._end.set()
            thread.join()

    def _look(self) -> None:
        while not self._end.wait(0.002):
            self.peak_disk = max(self.peak_disk, used_bytes(self.directory))
            self.samples += 1
            with contextlib.suppress(OSError, StopIteration):
                status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
                line = next(line for line in status if line.startswith("VmHWM"))
                self.peak_memory = max(self.peak_memory, int(line.split()[1]) * 1024)


@dataclass
class Run:
    """`sparseflow prepare org/model` into one models directory, as often as it takes."""

    hub: Hub
    home: Path
    watch: Watch

    @property
    def output(self) -> Path:
        return self.home / "models" / "org--model--int4"

    def start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "HF_ENDPOINT": self.hub.url, "SPARSEFLOW_HOME": str(self.home)}
        command = [sys.executable, "-m", "sparseflow.cli.main", "prepare", "org/model", "--quiet"]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        self.watch.pid = process.pid
        return process

    def kill_when(self, is_time: Callable[[], bool]) -> None:
        process = self.start()
        while process.poll() is None and not is_time():
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL

    def converted(self) -> list[str]:
        """Shards that the journal names."""
        try:
            journal = json.loads((self.output / ".prepare/journal.json").read_text())
        except FileNotFoundError:
            return []
        shards: list[str] = journal["shards"]
        return shards

    def is_downloading(self) -> bool:
        """Whether a shard is there in part."""
        return any(0 < size < self.whole(name) for name, size in self.shards().items())

    def is_converting(self) -> bool:
        """Whether a shard is there whole, the journal does not name it, and temporary files have changed since."""
        whole = {name for name, size in self.shards().items() if size == self.whole(name)}
        work = self.output / ".prepare"
        try:
            journal = (work / "journal.json").stat().st_mtime_ns
            changed = max((path.stat().st_mtime_ns for path in work.glob("*.s*")), default=0)
        except FileNotFoundError:
            return False
        return bool(whole - set(self.converted())) and changed > journal

    def part_bytes(self) -> int:
        """Written by conversion, and not in a finished file."""
        return sum(
            path.stat().st_blocks * DEVICE_BLOCK for path in (self.output / ".prepare").glob("*.s*")
        )

    def shards(self) -> dict[str, int]:
        """Bytes of what is downloaded."""
        directory = self.output / ".prepare/shards"
        sizes = {}
        for path in directory.iterdir() if directory.exists() else []:
            with contextlib.suppress(FileNotFoundError):
                sizes[path.name] = path.stat().st_size
        return sizes

    def whole(self, name: str) -> int:
        return (self.hub.directory / name).stat().st_size


def kill_in_download(run: Run, nbytes: int) -> None:
    """When so many bytes have been served in all."""
    run.kill_when(lambda: run.hub.total_served >= nbytes and run.is_downloading())


def kill_in_conversion(run: Run, nbytes: int) -> None:
    """When so many bytes of the container have been written in this run."""
    before = run.part_bytes() + sum_of_finished(run.output)

    def is_time() -> bool:
        written = run.part_bytes() + sum_of_finished(run.output) - before
        return written >= nbytes and run.is_converting()

    run.kill_when(is_time)


def check_requests(run: Run, before: dict[str, int], converted: list[str]) -> list[str]:
    """What a run asked for first of each shard begins where an earlier one ended, and nothing of those that had been
    converted; returns the shards that were whole and yet asked for anew, as wrong ones have to be.
    """
    first: dict[str, int] = {}
    for name, asked in run.hub.requests:
        if name.endswith(".safetensors"):
            begin = int((asked or "bytes=0-").removeprefix("bytes=").split("-")[0])
            first.setdefault(name, begin)
    assert not first.keys() & set(converted)
    anew = [name for name in first if before.get(name) == run.whole(name) and first[name] == 0]
    assert all(first[name] == before.get(name, 0) for name in first if name not in anew)
    return anew


def sum_of_finished(output: Path) -> int:
    """Bytes of finished files."""
    files = [path for path in output.rglob("*") if ".prepare" not in path.parts and path.is_file()]
    return sum(path.stat().st_size for path in files)


def check_same(output: Path, reference: Path) -> None:
    """Same files, hidden ones included, with the same bytes."""
    names = {str(path.relative_to(reference)) for path in reference.rglob("*")}
    assert {str(path.relative_to(output)) for path in output.rglob("*")} == names
    for name in names:
        if (reference / name).is_file():
            assert filecmp.cmp(reference / name, output / name, shallow=False), name


def kill_and_check(run: Run, kinds: list[str], step_bytes: int, seed: int) -> tuple[int, int]:
    """Kills in a `download` or a `conversion`, in this order, then lets it end; returns how many kills met a shard that
    was there in part, and how many one that was converted in part. Both can be.
    """
    total = sum(run.whole(path.name) for path in run.hub.directory.glob("*.safetensors"))
    shares = random.Random(seed)
    in_download = in_conversion = 0
    anew: list[str] = []
    for number, kind in enumerate([*kinds, "end"]):
        shards, converted = run.shards(), run.converted()
        run.hub.requests.clear()
        if kind == "end":
            assert run.start().wait() == 0
        elif kind == "download":
            share = (number + shares.uniform(0.1, 0.9)) / (len(kinds) + 1)
            kill_in_download(run, max(run.hub.total_served + 1, int(share * total)))
        else:
            kill_in_conversion(run, step_bytes)
        anew += check_requests(run, shards, converted)
        if kind != "end":
            assert run.is_downloading() or run.is_converting()
            in_download += run.is_downloading()
            in_conversion += run.is_converting()
            assert not (run.output / "manifest.json").exists()
            assert set(run.converted()) >= set(converted)
    assert len(anew) <= 1  # the one whose bytes were wrong, if it was found so by a later run
    return in_download, in_conversion


def check_and_report(run: Run, reference: Path, kills: int, met: tuple[int, int]) -> None:
    """Checks the container, and prints and checks what was measured."""
    check_same(run.output, reference)
    assert [path.name for path in (run.home / "models").iterdir()] == [run.output.name]
    shards = [path.stat().st_size for path in run.hub.directory.glob("*.safetensors")]
    watch, container, two = run.watch, used_bytes(reference), sum(sorted(shards)[-2:])
    print(
        f"\n{kills} kills: {met[0]} with a shard downloaded in part, {met[1]} with one converted in part"
    )
    print(
        f"peak disk {watch.peak_disk} bytes ({watch.samples} samples)"
        f" <= container {container} + two shards {two} = {container + two}"
    )
    print(f"peak memory {watch.peak_memory >> 20} MiB; identical to the local prepare")
    wrong = " one shard was wrong once," if run.hub.faults else ""
    print(
        f"served {run.hub.total_served} bytes for a checkpoint of {sum(shards)}:{wrong}"
        " what is under way at a kill is lost"
    )
    assert watch.peak_disk <= container + two
    assert watch.peak_memory <= PEAK_MEMORY_BYTES


def faults(source: Path) -> list[Fault]:
    """The largest shard's connection breaks once, and its bytes are wrong once."""
    large = max(source.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    nbytes = large.stat().st_size
    return [
        Fault(large.name, "drop", skip=1, after_bytes=nbytes // 3),
        Fault(large.name, "flip", skip=1, after_bytes=nbytes - 100),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_download_of_a_tiny_model_goes_on(tmp_path: Path) -> None:
    words = ["--tiny", "--layers", "6", "--order", "adversarial", "--shards", "4"]
    source = make(parse_options([*words, str(tmp_path / "source")]))
    reference = prepare(source, tmp_path / "reference")
    with serve(Hub(source)) as hub, Watch(tmp_path / "home").running() as watch:
        # Slow enough for a kill to meet the download that it is meant for.
        hub.bytes_per_second = 1e6
        run = Run(hub, tmp_path / "home", watch)
        met = kill_and_check(run, ["download"] * 2, step_bytes=0, seed=1)
        check_and_report(run, reference, 2, met)
    assert met[0] == 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_download_of_two_true_layers_goes_on(tmp_path: Path) -> None:
    words = ["--true-geometry", "--layers", "2", "--order", "adversarial", "--shards", "7"]
    try:
        source = make(parse_options([*words, str(tmp_path / "source")]))
        reference = prepare(source, tmp_path / "reference")
        with serve(Hub(source)) as hub, Watch(tmp_path / "home").running() as watch:
            hub.faults = faults(source)
            run = Run(hub, tmp_path / "home", watch)
            met = kill_and_check(run, ["download", "conversion"] * 5, step_bytes=40 << 20, seed=2)
            check_and_report(run, reference, 10, met)
            assert all(fault.times == 0 for fault in hub.faults)
        assert min(met) >= 4
    finally:
        for name in ("source", "reference", "home"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
