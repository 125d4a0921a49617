"""The identity ladder: one prompt under every way of running it; one hash must come out.

Rows differ in what may change time but never output: expert store, cache capacity, eviction policy, threads, prefill
chunk, instruction set, direct I/O. Each is the `run` command in a process of its own (row_process.py). A row below full
capacity that evicts nothing proves nothing, and fails the ladder like a row that differs.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparseflow.config import ISA_NAMES

Report = dict[str, Any]
"""What `run --json` writes."""

ISAS = tuple(name for name in ISA_NAMES if name != "auto")

PROMPT = """Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse, and
nothing particular to interest me on shore, I thought I would sail about a little and see the watery part of the world.
It is a way I have of driving off the spleen and regulating the circulation. Whenever I find myself growing grim about
the mouth; whenever it is a damp, drizzly November in my soul; then, I account it high time to get to sea as soon as I
can."""
PROMPT_TOKENS = 128
"""At most; never less than 64 in any vocabulary, since a word is at least a token."""
NEW_TOKENS = 64
WHOLE_CHUNK = 256
"""A prefill chunk that holds the whole prompt."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way to run."""

    store: str = "resident"
    cache_bytes: int | None = None
    policy: str = "scored"
    threads: int = 1
    prefill_chunk: int = 64
    isa: str = "auto"
    direct_io: bool = True
    must_evict: bool = False
    """Whether the capacity is below what the prompt touches, so that evictions must show."""

    def arguments(self) -> list[str]:
        """The flags of `run`."""
        flags = [
            f"--store={self.store}",
            f"--policy={self.policy}",
            f"--threads={self.threads}",
            f"--prefill-chunk={self.prefill_chunk}",
            f"--isa={self.isa}",
            "--no-heat",
        ]
        if self.cache_bytes is not None:
            flags.append(f"--cache={self.cache_bytes}")
        return flags if self.direct_io else [*flags, "--no-direct-io"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a row showed. Without a report, either `not_run` or `failure` says why."""

    row: Row
    report: Report | None = None
    not_run: str = ""
    failure: str = ""

    @property
    def steps(self) -> list[str]:
        """SHA-256 of the logits of each step, joined with the id that was chosen from them."""
        if self.report is None:
            return []
        return [
            f"{h}:{i}"
            for h, i in zip(self.report["logits_sha256"], self.report["ids"], strict=True)
        ]

    @property
    def sha256(self) -> str:
        """One hash over all steps; empty if there is no report."""
        return hashlib.sha256("\n".join(self.steps).encode()).hexdigest() if self.report else ""

    def to_dict(self) -> dict[str, Any]:
        experts = {} if self.report is None else self.report["experts"]
        isa = "" if self.report is None else self.report["isa"]
        return {
            **asdict(self.row),
            "sha256": self.sha256,
            "isa_used": isa,
            "not_run": self.not_run,
            "failure": self.failure,
            "experts": experts,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """`is_identical` only if every row that ran agrees in every step and every row that had to evict did."""

    is_identical: bool
    sentence: str


def choose_prompt(num_tokens: Callable[[str], int]) -> str:
    """As many words of PROMPT as make at most PROMPT_TOKENS tokens."""
    words = PROMPT.split()
    while len(words) > 1 and num_tokens(" ".join(words)) > PROMPT_TOKENS:
        words.pop()
    return " ".join(words)


def all_rows(partial: Sequence[int], full: int) -> list[Row]:
    """Every rung. `partial`: arena sizes in bytes below `full`, the one that holds every expert; ascending."""
    chunks = (1, 7, 64, WHOLE_CHUNK)
    tight = Row(store="streaming", cache_bytes=partial[len(partial) // 2], must_evict=True)
    rows = [Row(), *(Row(isa=isa) for isa in ISAS)]
    rows += [Row(threads=threads) for threads in (1, 2, 3, 7)]
    rows += [Row(prefill_chunk=chunk) for chunk in chunks]
    rows += [
        Row(store="streaming", cache_bytes=size, policy=policy, must_evict=size < full)
        for size, policy in itertools.product((*partial, full), ("scored", "lru"))
    ]
    rows += [replace(tight, isa=isa) for isa in ISAS]
    rows += [replace(tight, threads=threads) for threads in (2, 3, 7)]
    rows += [replace(tight, prefill_chunk=chunk) for chunk in chunks]
    rows.append(replace(tight, direct_io=False))
    return list(dict.fromkeys(rows))


def quick_rows(partial: Sequence[int], full: int) -> list[Row]:
    """The rungs that differ most, for slow machines and emulators."""
    return [
        Row(),
        *(Row(isa=isa) for isa in ISAS),
        Row(
            store="streaming",
            cache_bytes=partial[0],
            policy="lru",
            threads=2,
            prefill_chunk=7,
            must_evict=True,
        ),
        Row(store="streaming", cache_bytes=full, threads=3, prefill_chunk=WHOLE_CHUNK),
    ]


def climb(
    rows: Sequence[Row],
    run_row: Callable[[Row], Outcome],
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Outcome]:
    """Runs the rows one after another."""
    outcomes = []
    for number, row in enumerate(rows):
        if progress is not None:
            progress("ladder", number, len(rows))
        outcomes.append(run_row(row))
    return outcomes


def judge(outcomes: Sequence[Outcome]) -> Verdict:
    """Compares every row with the first one that ran; names the first step that differs."""
    ran = [(number, outcome) for number, outcome in enumerate(outcomes, 1) if outcome.report]
    for number, outcome in enumerate(outcomes, 1):
        if outcome.failure:
            return Verdict(False, f"row {number} failed: {outcome.failure}")
    if not ran:
        return Verdict(False, "no row ran")
    first_number, first = ran[0]
    for number, outcome in ran[1:]:
        step = first_difference(first.steps, outcome.steps)
        if step is not None:
            return Verdict(
                False, f"row {number} differs from row {first_number}, first at step {step}"
            )
    for number, outcome in ran:
        if outcome.row.must_evict and not outcome.to_dict()["experts"]["evictions"]:
            return Verdict(
                False, f"row {number} evicted nothing below full capacity: it proves nothing"
            )
    missing = sorted({o.not_run for o in outcomes if o.not_run})
    note = f"; not run: {', '.join(missing)}" if missing else ""
    return Verdict(True, f"one hash in {len(ran)} rows of {len(first.steps)} steps{note}")


def first_difference(expected: Sequence[str], found: Sequence[str]) -> int | None:
    """Index of the first step in which two rows differ; None if they are equal."""
    for step, (left, right) in enumerate(zip(expected, found, strict=False)):
        if left != right:
            return step
    shorter = min(len(expected), len(found))
    return None if len(expected) == len(found) else shorter
