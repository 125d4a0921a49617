"""Router look-ahead against demand reads alone: decode speed of both, alternately, in one run.

    python benchmarks/lookahead.py CONTAINER --cache 4G [--pairs 5] [--warm 32] [--new 64] [--json FILE]

A pair is one request without and one with look-ahead (then the other way round), each with an engine of its own that
starts cold; the table shows every pair and the medians. Both must give the same ids. Meaningful on an idle
machine only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from sparseflow.config import EngineConfig, SamplingParams
from sparseflow.engine.engine import Engine
from sparseflow.errors import SparseFlowError
from sparseflow.planning.budget import settle
from sparseflow.units import parse_size

PROMPT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Run:
    """The measured tokens of one request."""

    lookahead: int
    token_seconds: float
    """Median."""
    reads: int
    misses: int
    ahead_reads: int
    ahead_hits: int
    wait_seconds: float
    ids: list[int]


def prompt_ids(container: Path, vocab_size: int) -> list[int]:
    """The beginning of the container's chain, where its greedy text is known; else ids spread over the vocabulary."""
    chain = container / "chain.json"
    if chain.is_file():
        ids: list[int] = json.loads(chain.read_text(encoding="utf-8"))["ids"][:PROMPT_TOKENS]
        return ids
    return [(7919 * i) % vocab_size for i in range(1, PROMPT_TOKENS + 1)]


def measure(arguments: argparse.Namespace, lookahead: int) -> Run:
    wanted = EngineConfig(
        store="streaming",
        cache_bytes=parse_size(arguments.cache),
        ctx=PROMPT_TOKENS + arguments.warm + arguments.new + 2,
        threads=arguments.threads,
        io=arguments.io,
        queue_depth=arguments.queue_depth,
        lookahead=lookahead,
    )
    config, _ = settle(arguments.container, wanted)
    with Engine.open(arguments.container, config) as engine:
        params = SamplingParams(
            max_new_tokens=1 + arguments.warm + arguments.new, temperature=0, ignore_eos=True
        )
        tokens = engine.generate(prompt_ids(arguments.container, engine.vocab_size), params)
        ids = [next(tokens).id for _ in range(1 + arguments.warm)]
        before = engine.stats().experts
        seconds = []
        for _ in range(arguments.new):
            start = time.perf_counter()
            ids.append(next(tokens).id)
            seconds.append(time.perf_counter() - start)
        tokens.close()
        after = engine.stats().experts
    return Run(
        lookahead,
        statistics.median(seconds),
        after.reads - before.reads,
        after.misses - before.misses,
        after.ahead_reads - before.ahead_reads,
        after.ahead_hits - before.ahead_hits,
        after.read_wait_seconds - before.read_wait_seconds,
        ids,
    )


def show(pairs: list[tuple[Run, Run]], new: int) -> None:
    print(
        "| pair | tok/s without | tok/s with | ratio | reads a token | with | guesses used | wait, s a token | with |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for number, (off, on) in enumerate(pairs, 1):
        useful = on.ahead_hits / on.ahead_reads if on.ahead_reads else 0.0
        print(
            f"| {number} | {1 / off.token_seconds:.2f} | {1 / on.token_seconds:.2f} | "
            f"{off.token_seconds / on.token_seconds:.3f} | {off.reads / new:.1f} | {on.reads / new:.1f} | "
            f"{useful:.0%} | {off.wait_seconds / new:.4f} | {on.wait_seconds / new:.4f} |"
        )
    ratios = [off.token_seconds / on.token_seconds for off, on in pairs]
    print(f"\nmedian ratio (above 1: look-ahead is faster): {statistics.median(ratios):.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("container", type=Path)
    parser.add_argument("--cache", required=True, help="size of the expert cache, e.g. 4G")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--warm", type=int, default=32, help="tokens before those that are measured"
    )
    parser.add_argument("--new", type=int, default=64, help="tokens that are measured")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--io", default="auto")
    parser.add_argument("--queue-depth", type=int, default=4)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pairs: list[tuple[Run, Run]] = []
    try:
        for number in range(arguments.pairs):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            runs = {lookahead: measure(arguments, lookahead) for lookahead in order}
            if runs[0].ids != runs[1].ids:
                print("lookahead: the ids differ; this is a bug", file=sys.stderr)
                return 1
            pairs.append((runs[0], runs[1]))
    except SparseFlowError as error:
        print(f"lookahead: {error}", file=sys.stderr)
        return error.exit_code
    show(pairs, arguments.new)
    if arguments.json is not None:
        rows = [{"without": asdict(off), "with": asdict(on)} for off, on in pairs]
        arguments.json.write_text(
            json.dumps({"container": str(arguments.container), "pairs": rows}, indent=2) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
