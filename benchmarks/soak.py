"""Decodes for a long time with a small cache and watches that nothing grows.

    python benchmarks/soak.py                        10,000 steps of the demo model, a cache of two tokens' experts
    python benchmarks/soak.py CONTAINER --steps 50000 --cache 512M

Every `--every` steps one text ends and the next begins, and the anonymous memory between them must be what it was after
the first, within 1 %. After every step no lease may be left; after closing, descriptors and threads are those from
before opening. Exit code 1 names what was not so.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sparseflow.bench.chain import prompt_ids
from sparseflow.config import EngineConfig, SamplingParams
from sparseflow.engine.engine import Engine
from sparseflow.errors import SparseFlowError
from sparseflow.host.process import process_memory
from sparseflow.planning.floor import token_bytes
from sparseflow.units import format_bytes, parse_size

PROMPT_TOKENS = 16
TOLERANCE = 0.01
Note = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Census:
    """What a process holds that must come back."""

    descriptors: int
    threads: int

    @classmethod
    def take(cls) -> Census:
        gc.collect()
        count = len(list(Path("/proc/self/fd").iterdir()))
        return cls(count, len(list(Path("/proc/self/task").iterdir())))


@dataclass(slots=True)
class Findings:
    """What was measured and what was wrong."""

    steps: int = 0
    evictions: int = 0
    samples: list[int] = field(default_factory=list)
    """Anonymous bytes after each text."""
    problems: list[str] = field(default_factory=list)

    @property
    def spread(self) -> float:
        """The largest change from the first sample, as a share of it."""
        first = self.samples[0]
        return max(abs(sample - first) / first for sample in self.samples)


def soak(container: Path, steps: int, every: int, cache_bytes: int, note: Note) -> Findings:
    """Runs it. Raises what opening and running raises."""
    findings = Findings()
    config = EngineConfig(store="streaming", cache_bytes=cache_bytes, ctx=PROMPT_TOKENS + every + 1)
    before = Census.take()
    _all_texts(container, config, steps, every, findings, note)
    after = Census.take()  # the engine is closed, and nobody holds it
    if after != before:
        findings.problems.append(f"after closing: {after}; before opening: {before}")
    if findings.evictions == 0:
        findings.problems.append("the cache never evicted: it is not small")
    return findings


def _all_texts(
    container: Path, config: EngineConfig, steps: int, every: int, findings: Findings, note: Note
) -> None:
    prompt = prompt_ids(container, PROMPT_TOKENS)
    with Engine.open(container, config) as engine:
        while findings.steps < steps:
            _one_text(engine, prompt, every, findings, note)
        findings.evictions = engine.stats().experts.evictions


def _one_text(
    engine: Engine, prompt: list[int], length: int, findings: Findings, note: Note
) -> None:
    """`length` tokens, seeded by how many came before, so that texts differ."""
    params = SamplingParams(max_new_tokens=length, seed=findings.steps, ignore_eos=True)
    for _ in engine.generate(prompt, params):
        leases = engine.store.active_leases
        if leases and len(findings.problems) < 10:
            findings.problems.append(f"{leases} leases are left after step {findings.steps}")
        findings.steps += 1
        note(findings.steps)
    gc.collect()
    findings.samples.append(process_memory().anonymous_bytes)


def small_cache(container: Path) -> int:
    """Bytes of the experts of two tokens."""
    needed = token_bytes(container)
    return 2 * needed.num_layers * needed.experts_per_token * needed.blob


@contextmanager
def progress(steps: int) -> Iterator[Note]:
    """A bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("decode", total=steps)
        yield lambda done: bars.update(task, completed=min(done, steps))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("container", nargs="?", default="demo", help="a directory, or demo")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=500, help="steps between two samples")
    parser.add_argument("--cache", type=parse_size, help="bytes of the expert cache")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="share of the memory")
    options = parser.parse_args(arguments)
    if options.steps < 2 * options.every or options.every < 1:
        parser.error("--steps must be at least twice --every, and that at least 1")
    try:
        container = resolve(options.container)
        cache_bytes = options.cache or small_cache(container)
        with progress(options.steps) as note:
            found = soak(container, options.steps, options.every, cache_bytes, note)
    except SparseFlowError as error:
        print(f"soak: {error}", file=sys.stderr)
        return error.exit_code
    if found.spread > options.tolerance:
        found.problems.append(f"memory moved by {found.spread:.2%}: {found.samples}")
    for problem in found.problems:
        print(f"NOT OK: {problem}")
    print(
        f"{found.steps} steps, cache {format_bytes(cache_bytes)}, {found.evictions} evictions; anonymous memory "
        f"{format_bytes(found.samples[0])}, moved by at most {found.spread:.2%} in {len(found.samples)} samples"
    )
    return 1 if found.problems else 0


def resolve(name: str) -> Path:
    """A container's directory; `demo` is prepared where the command line keeps it."""
    import platformdirs

    from sparseflow.prepare.models import resolve_model

    models_dir = platformdirs.user_data_path("sparseflow") / "models"
    return resolve_model(name, models_dir, platformdirs.user_cache_path("sparseflow"))


if __name__ == "__main__":
    sys.exit(main())
