"""Decodes in a memory control group while another process takes memory in it, and shows that nothing breaks.

    python benchmarks/pressure.py CONTAINER --cache 3G --take 2GB [--new 600] [--plot FILE.svg]
    python benchmarks/pressure.py demo --take 128M --new 3000

The same decode runs twice: undisturbed, then in a group whose limit (`--limit`) leaves a quarter of `--take` beside
the engine with a full arena, and what three quarters of the arena would not make room for. A process that holds
`--take` bytes joins for the second quarter of the tokens. Exit code 1
names what was not so: the run goes on, the arena shrinks and grows back to its full size, the logits are those of the
undisturbed run, nobody is killed. Needs the right to make control groups.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak import resolve, small_cache
from sparseflow.bench import enter
from sparseflow.bench.limits import MemoryGroup
from sparseflow.errors import SparseFlowError
from sparseflow.host.memory import memory_facts
from sparseflow.planning.plot import check_plot
from sparseflow.units import format_bytes, parse_size

HERE = Path(__file__).parent
SLACK_SHARE = 4
SLACK_BYTES = 16 << 20
LEAST_HOLD_SECONDS = 3.0
MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class Sample:
    """What was held at one moment, in bytes."""

    seconds: float
    """Since the decode began to report."""
    tokens: int
    allowed: int
    held: int
    touched: int
    """Of the arena: written to."""
    own: int
    """Anonymous memory of the engine's process, the arena included."""
    others: int
    """The rest of the group's."""
    is_taken: bool
    """The other process runs."""


@dataclass(slots=True)
class Run:
    """One decode: its samples and what it said at the end; nothing if it did not end well."""

    samples: list[Sample] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    full: int = 0
    exit_code: int = 0
    oom_kills: int = 0
    has_taken: bool = False
    """The other process got all it wanted."""

    @property
    def full_own(self) -> int:
        """Of the engine's process, if its arena were full."""
        return self.full + max((s.own - s.touched for s in self.samples), default=0)


class Taker:
    """The other process: `quarter` of the tokens after the start, for as many tokens."""

    def __init__(self, group: MemoryGroup, size: int, quarter: int) -> None:
        self._command = _inside(group, [str(HERE / "take_memory.py"), str(size)], "-S", "-E")
        self._quarter = quarter
        self._child: subprocess.Popen[bytes] | None = None
        self._since = 0.0
        self.is_done = False
        self.has_taken = False

    @property
    def is_running(self) -> bool:
        return self._child is not None

    def follow(self, tokens: int) -> None:
        """Starts or ends it, as far as the decode has come."""
        now = time.monotonic()
        if self._child is None and not self.is_done and tokens >= self._quarter:
            pipe = subprocess.PIPE
            self._child = subprocess.Popen(self._command, stdin=pipe, stdout=pipe)
            self._since = now
            threading.Thread(target=self._listen, args=[self._child], daemon=True).start()
        elif (
            self._child and tokens >= 2 * self._quarter and now - self._since >= LEAST_HOLD_SECONDS
        ):
            self.end()

    def end(self) -> None:
        if self._child is not None:
            self._child.communicate()
            self._child, self.is_done = None, True

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        self.has_taken = child.stdout.readline() == b"held\n"


def measure(container: Path, cache: int, new: int, limit: int, take: int) -> Run:
    """Decodes within `limit`; take: bytes that another process holds for a while, 0: none. Raises what groups raise."""
    run = Run()
    with ExitStack() as stack:
        group = stack.enter_context(MemoryGroup(limit))
        taker = Taker(group, take, new // 4)
        stack.callback(taker.end)
        command = _inside(
            group, [str(HERE / "pressure_run.py"), str(container), str(cache), str(new)]
        )
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert child.stdin is not None
        assert child.stdout is not None
        taker.is_done = take == 0
        start = 0.0
        for line in child.stdout:
            said = json.loads(line)
            if "hash" in said:
                run.end = said
                continue
            taker.follow(said["tokens"] if said["is_decoding"] else new)
            if taker.is_done:
                child.stdin.close()
            run.full = said["full"]
            start = start or said["seconds"]
            seconds = said["seconds"] - start
            run.samples.append(_sample(said, seconds, group, is_taken=taker.is_running))
        run.exit_code = child.wait()
        run.oom_kills, run.has_taken = group.memory().oom_kills, taker.has_taken
    return run


def find_problems(run: Run, undisturbed: Run) -> list[str]:
    """What was not as it must be; empty if all was."""
    if not run.end or run.exit_code:
        return [f"the run ended with {run.exit_code}; {run.oom_kills} were killed for memory"]
    facts = {
        "the other process did not get its memory": run.has_taken,
        f"{run.oom_kills} processes were killed for memory": run.oom_kills == 0,
        "no token came meanwhile": len({s.tokens for s in run.samples if s.is_taken}) > 1,
        "the arena did not shrink": run.end["shrinks"] > 0 and run.end["least"] < run.full,
        "the arena did not grow back": bool(run.samples) and run.samples[-1].allowed == run.full,
        "the logits differ from the undisturbed run": run.end["hash"] == undisturbed.end["hash"],
        f"{run.end['leases']} leases are left": run.end["leases"] == 0,
        f"the undisturbed run shrank {undisturbed.end['shrinks']} times": undisturbed.end["shrinks"]
        == 0,
    }
    return [*(text for text, is_so in facts.items() if not is_so), *run.end["warnings"]]


def table(run: Run) -> str:
    """At most MOST_ROWS rows, evenly spaced."""
    lines = [
        "| seconds | tokens | arena allowed | arena held | engine | others |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    every = -(-len(run.samples) // MOST_ROWS)
    for sample in run.samples[::every]:
        sizes = (sample.allowed, sample.held, sample.own, sample.others)
        cells = (f"{sample.seconds:.1f}", str(sample.tokens), *map(format_bytes, sizes))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(run: Run, limit: int, path: Path) -> None:
    """Memory over time, stacked. Raises what `check_plot` raises."""
    check_plot(path)
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    seconds = [sample.seconds for sample in run.samples]
    gib = 1 << 30
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    own = [sample.own / gib for sample in run.samples]
    others = [sample.others / gib for sample in run.samples]
    axes.stackplot(seconds, own, others, labels=["engine", "others"], colors=["#9fb3c8", "#e0b394"])
    allowed = [sample.allowed / gib for sample in run.samples]
    axes.plot(seconds, allowed, color="#b44d12", label="arena allowed")
    axes.axhline(limit / gib, linestyle="--", color="#52606d", label="limit of the group")
    axes.set(xlabel="seconds", ylabel="GiB", title="Memory in the group")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("container", nargs="?", default="demo", help="a directory, or demo")
    parser.add_argument("--cache", type=parse_size, help="bytes of the expert arena")
    parser.add_argument("--take", type=parse_size, default=2_000_000_000)
    parser.add_argument("--limit", type=parse_size, help="bytes of the group")
    parser.add_argument("--new", type=int, default=600, help="tokens")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        if options.plot:
            check_plot(options.plot)
        return _compare(options)
    except SparseFlowError as error:
        print(f"pressure: {error}", file=sys.stderr)
        return error.exit_code


def _compare(options: argparse.Namespace) -> int:
    container = resolve(options.container)
    cache = options.cache or 4 * small_cache(container)
    undisturbed = measure(container, cache, options.new, memory_facts().total_bytes, 0)
    if not undisturbed.end:
        print("NOT OK: the undisturbed run failed")
        return 1
    lacking = max(0, options.take - cache * 3 // 4)
    slack = options.take // SLACK_SHARE + SLACK_BYTES
    limit = options.limit or undisturbed.full_own + lacking + slack
    run = measure(container, cache, options.new, limit, options.take)
    print(table(run))
    if options.plot:
        draw(run, limit, options.plot)
    problems = find_problems(run, undisturbed)
    for problem in problems:
        print(f"NOT OK: {problem}")
    print(_summary(run, undisturbed, limit, options.take))
    return 1 if problems else 0


def _summary(run: Run, undisturbed: Run, limit: int, take: int) -> str:
    end = run.end or {"shrinks": 0, "grows": 0, "least": 0, "hash": "-", "decode_seconds": 0}
    return (
        f"group of {format_bytes(limit)}, another process took {format_bytes(take)}: arena {format_bytes(run.full)}, "
        f"shrunk {end['shrinks']} times, to {format_bytes(end['least'])}, grown {end['grows']} times; "
        f"{run.oom_kills} killed; decode {end['decode_seconds']:.1f} s, undisturbed "
        f"{undisturbed.end['decode_seconds']:.1f} s; hash {end['hash'][:16]}, "
        f"undisturbed {undisturbed.end['hash'][:16]}"
    )


def _sample(said: dict[str, Any], seconds: float, group: MemoryGroup, *, is_taken: bool) -> Sample:
    others = max(0, group.memory().anonymous_bytes - said["own"])
    sizes = (said["allowed"], said["held"], said["touched"], said["own"], others)
    return Sample(seconds, said["tokens"], *sizes, is_taken)


def _inside(group: MemoryGroup, words: list[str], *flags: str) -> list[str]:
    """The command of a Python program in the group."""
    python = sys.executable
    return [python, "-S", "-E", enter.__file__, str(group.procs), python, *flags, *words]


if __name__ == "__main__":
    sys.exit(main())
