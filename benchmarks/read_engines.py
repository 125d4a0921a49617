"""How fast each read engine reads whole experts at random, past the page cache, at several queue depths.

    python benchmarks/read_engines.py CONTAINER [--reads 200] [--rounds 3] [--nbytes 1.5M] [--json FILE]

Every round goes through all engines and depths in turn, so that a machine that slows down slows all of them; the table
shows the best and the median round. Meaningful on an idle machine only. CPU seconds are those of this process.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from sparseflow.errors import ConfigError, SparseFlowError
from sparseflow.native import _ext
from sparseflow.units import parse_size

ENGINES = ("pread", "io_uring")
DEPTHS = (1, 2, 4, 8, 16)
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Result:
    """All rounds of one engine at one queue depth."""

    engine: str
    queue_depth: int
    bytes_per_second: list[float]
    cpu_seconds_per_gb: list[float]


def choose_reads(files: list[Path], nbytes: int, count: int, seed: int) -> list[tuple[int, int]]:
    """(file, offset) of `count` page-aligned ranges that do not overlap where the files are large enough."""
    places = [
        (index, offset)
        for index, path in enumerate(files)
        for offset in range(PAGE, path.stat().st_size - nbytes + 1, nbytes)
    ]
    if not places:
        raise ConfigError(f"no file holds {nbytes} bytes; give a smaller --nbytes")
    chosen = random.Random(seed)
    return chosen.sample(places, count) if count <= len(places) else chosen.choices(places, k=count)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(
    name: str, depth: int, files: list[Path], reads: list[tuple[int, int]], nbytes: int
) -> tuple[float, float]:
    """(bytes a second, CPU seconds for 10^9 bytes)"""
    engine = _ext.create_read_engine(name, depth, True)
    before = cpu_seconds()
    seconds = _ext.time_reads(engine, [str(path) for path in files], reads, nbytes)
    total = len(reads) * nbytes
    return total / seconds, (cpu_seconds() - before) / (total / 1e9)


def available_engines() -> list[str]:
    """Those that the system lets be made; says why another is missing."""
    found = []
    for name in ENGINES:
        try:
            _ext.create_read_engine(name)
            found.append(name)
        except ConfigError as error:
            print(f"not measured: {error}", file=sys.stderr)
    return found


def run(arguments: argparse.Namespace) -> list[Result]:
    files = sorted((arguments.container / "experts").glob("*.sfi"))
    if not files:
        raise ConfigError(f"{arguments.container}: no container with experts")
    nbytes = (
        parse_size(arguments.nbytes) if arguments.nbytes else _ext.SfiFile(str(files[0])).blob_bytes
    )
    nbytes -= nbytes % PAGE
    cells = [(name, depth) for name in available_engines() for depth in DEPTHS]
    rounds: dict[tuple[str, int], list[tuple[float, float]]] = {cell: [] for cell in cells}
    for number in range(arguments.rounds):
        for position, (name, depth) in enumerate(cells):
            seed = number * len(cells) + position
            reads = choose_reads(files, nbytes, arguments.reads, seed)
            rounds[name, depth].append(measure(name, depth, files, reads, nbytes))
    return [
        Result(name, depth, [speed for speed, _ in found], [cpu for _, cpu in found])
        for (name, depth), found in rounds.items()
    ]


def show(results: list[Result]) -> None:
    print("| engine | queue depth | GB/s, best | GB/s, median | CPU s/GB, median |")
    print("|---|---|---|---|---|")
    for result in results:
        speeds = [speed / 1e9 for speed in result.bytes_per_second]
        cpu = statistics.median(result.cpu_seconds_per_gb)
        print(
            f"| {result.engine} | {result.queue_depth} | {max(speeds):.2f} | "
            f"{statistics.median(speeds):.2f} | {cpu:.3f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("container", type=Path)
    parser.add_argument("--reads", type=int, default=200, help="of one cell and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nbytes", help="of one read; default: one expert")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    start = time.time()
    try:
        results = run(arguments)
    except SparseFlowError as error:
        print(f"read_engines: {error}", file=sys.stderr)
        return error.exit_code
    show(results)
    if arguments.json is not None:
        report = {"container": str(arguments.container), "seconds": time.time() - start}
        rows = [asdict(result) for result in results]
        arguments.json.write_text(json.dumps({**report, "results": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
