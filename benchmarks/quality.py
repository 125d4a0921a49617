"""What the recipes cost in quality, beside a peer's formats.

    python benchmarks/quality.py                                  the demo, and a seeded Gaussian model
    python benchmarks/quality.py --model DIR --name smollm2       a checkpoint, on the demo's held-out text
    python benchmarks/quality.py --study                          which formats int4-small should have

The reference is the bf16 recipe. Every recipe runs as it is used, with rounded activations and float16 keys and values.
gguf's Q4_0 and Q8_0 are put through the same tensors, back into BF16 weights, and run by the bf16 recipe: experts and
dense weights exactly where recipe int4 has 4 and 8 bits, as peers mix them. Outliers: 8 hidden channels times 50, in
what matrices read (by the norms before them), in the matrices' columns, or in the first with columns to match. Needs
the `gguf` package. Exit code 1 names every requirement that is not met.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from rich.console import Console
from rich.table import Table

from make_synthetic_checkpoint import make, parse_options
from quality_variants import STUDY, VARIANTS, Variant, costs
from quality_weights import alter, pass_through, with_outliers
from sparseflow.cli.console import ProgressBars, progress_bars
from sparseflow.config import EngineConfig
from sparseflow.container.recipes import RECIPES, get_recipe
from sparseflow.demo import checkpoint_path, heldout_path
from sparseflow.engine.engine import Engine
from sparseflow.errors import SparseFlowError
from sparseflow.evaluation.divergence import Divergence, Logits, measure
from sparseflow.evaluation.perplexity import measure as measure_perplexity
from sparseflow.prepare.prepare import prepare
from sparseflow.tokenizer.tokenizer import Tokenizer

GAUSSIAN_LAYERS, GAUSSIAN_VOCAB, SEED = 4, 2048, 0
OUTLIERS = ("activations", "weights", "both")


@dataclass(frozen=True)
class Case:
    """A model and what it reads."""

    name: str
    checkpoint: Path
    windows: list[list[int]]
    """Ids, each list from an empty state."""
    is_text: bool
    """Whether a perplexity means anything."""


@dataclass(frozen=True)
class Result:
    """One variant of one case; the reference has no divergence."""

    case: str
    variant: str
    bits_per_weight: float
    bytes_per_token: int
    divergence: Divergence | None
    perplexity: float | None

    def to_dict(self) -> dict[str, Any]:
        own = asdict(self)
        return {**own, **(own.pop("divergence") or {})}


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    with tempfile.TemporaryDirectory(dir=options.work) as scratch:
        results: list[Result] = []
        for case in cases(options, Path(scratch)):
            variants = STUDY if options.study else VARIANTS
            with progress_bars(quiet=options.quiet) as progress:
                results += compare(case, variants, options.threads, Path(scratch), progress)
            show([result for result in results if result.case == case.name])
    failures = [] if options.study else judge(results)
    if options.json is not None:
        document = {"results": [result.to_dict() for result in results], "failures": failures}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for failure in failures:
        print(f"NOT MET: {failure}")
    return 1 if failures else 0


def cases(options: argparse.Namespace, scratch: Path) -> Iterator[Case]:
    """The models asked for; checkpoints that are made for this lie in `scratch`."""
    if options.model is not None or "demo" in options.cases:
        checkpoint = options.model or checkpoint_path()
        name = options.name or ("demo" if options.model is None else checkpoint.name)
        text = (options.text or heldout_path()).read_text(encoding="utf-8")
        ids = Tokenizer.open(checkpoint).encode(text, add_special_tokens=True)[: options.tokens]
        yield Case(name, checkpoint, cut(ids, options.window), is_text=True)
    if options.model is not None or "gaussian" not in options.cases:
        return
    words = ["--medium", f"--layers={GAUSSIAN_LAYERS}", f"--vocab={GAUSSIAN_VOCAB}"]
    plain = make(parse_options([*words, f"--seed={SEED}", str(scratch / "gaussian")]))
    hidden_size = json.loads((plain / "config.json").read_text())["hidden_size"]
    random = np.random.Generator(np.random.Philox(key=SEED))
    ids = random.integers(0, GAUSSIAN_VOCAB, options.random_tokens).tolist()
    windows = cut(ids, options.window)
    yield Case("gaussian", plain, windows, is_text=False)
    for kind in options.outliers:
        change = with_outliers(kind, hidden_size, SEED)
        altered = alter(plain, scratch / f"outliers-{kind}", change)
        yield Case(f"gaussian, outliers in {kind}", altered, windows, is_text=False)


def cut(ids: list[int], window: int) -> list[list[int]]:
    """Consecutive parts of `window` ids; a last one of a single id has nothing to predict."""
    parts = [ids[i : i + window] for i in range(0, len(ids), window)]
    return [part for part in parts if len(part) > 1]


def compare(
    case: Case,
    variants: Sequence[Variant],
    threads: int,
    scratch: Path,
    progress: ProgressBars | None = None,
) -> list[Result]:
    """The reference's result, then each variant's."""
    reference = list(run(case, Variant("bf16", "bf16"), threads, scratch, progress))
    results = [result_of(case, Variant("bf16", "bf16"), reference, None)]
    for variant in variants:
        logits = list(run(case, variant, threads, scratch, progress))
        divergence = measure(zip(reference, logits, strict=True))
        results.append(result_of(case, variant, logits, divergence))
    return results


def result_of(
    case: Case, variant: Variant, logits: list[Logits], divergence: Divergence | None
) -> Result:
    bits, nbytes = costs(case.checkpoint, variant)
    perplexity = perplexity_of(case, logits) if case.is_text else None
    return Result(case.name, variant.name, bits, nbytes, divergence, perplexity)


def run(
    case: Case, variant: Variant, threads: int, scratch: Path, progress: ProgressBars | None
) -> Iterator[Logits]:
    """Logits after every id of each window, [n, vocab_size]. What is prepared for it is removed."""
    container, altered = scratch / "container", scratch / "altered"
    try:
        if variant.types:
            recipe = get_recipe(variant.recipe)
            source = alter(case.checkpoint, altered, pass_through(recipe, variant.types))
            prepare(source, container, "bf16", progress)
        elif variant.by_class is not None:
            RECIPES[variant.by_class.name] = variant.by_class
            prepare(case.checkpoint, container, variant.by_class.name, progress)
        else:
            prepare(case.checkpoint, container, variant.recipe, progress)
        longest = max(len(window) for window in case.windows)
        with Engine.open(container, EngineConfig(ctx=longest, threads=threads)) as engine:
            for number, window in enumerate(case.windows):
                if progress is not None:
                    progress(f"{case.name}: {variant.name}", number, len(case.windows))
                yield np.concatenate(list(engine.iter_logits(window)))
    finally:
        if variant.by_class is not None:
            RECIPES.pop(variant.by_class.name, None)
        for directory in (container, altered):
            shutil.rmtree(directory, ignore_errors=True)


class _Replay:
    """Logits that were computed before, as perplexity asks for them: window by window."""

    def __init__(self, logits: list[Logits]) -> None:
        self._logits = iter(logits)

    def iter_logits(self, ids: Sequence[int]) -> Iterator[Logits]:
        found = next(self._logits)
        assert len(found) == len(ids), "windows come in order"
        yield found


def perplexity_of(case: Case, logits: list[Logits]) -> float:
    """Of the case's ids, the first of each window given."""
    ids = [i for window in case.windows for i in window]
    return measure_perplexity(_Replay(logits), ids, len(case.windows[0])).perplexity


def judge(results: Sequence[Result]) -> list[str]:
    """Every requirement that is not met, in a sentence with both figures."""
    failures = []
    for case in dict.fromkeys(result.case for result in results):
        kl = {
            r.variant: r.divergence.kl
            for r in results
            if r.case == case and r.divergence is not None
        }
        for left, factor, right in (("int4", 1.05, "Q4_0"), ("int8", 0.1, "int4")):
            if kl[left] > factor * kl[right]:
                failures.append(
                    f"{case}: KL({left}) {kl[left]:.3e} is {kl[left] / kl[right]:.3f} times KL({right})"
                    f" {kl[right]:.3e}; at most {factor} is asked for"
                )
    return failures


def show(results: Sequence[Result]) -> None:
    """One table for a case."""
    table = Table(
        "variant",
        "bits/weight",
        "MB/token",
        "KL",
        "+-",
        "top-1",
        "perplexity",
        title=results[0].case,
    )
    for result in results:
        found = result.divergence
        table.add_row(
            result.variant,
            f"{result.bits_per_weight:.2f}",
            f"{result.bytes_per_token / 1e6:.3f}",
            "" if found is None else f"{found.kl:.3e}",
            "" if found is None else f"{found.kl_error:.1e}",
            "" if found is None else f"{found.top1:.4f}",
            "" if result.perplexity is None else f"{result.perplexity:.4f}",
        )
    Console(width=120).print(table)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases", nargs="+", choices=["demo", "gaussian"], default=["demo", "gaussian"]
    )
    parser.add_argument("--outliers", nargs="*", choices=OUTLIERS, default=list(OUTLIERS))
    parser.add_argument("--model", type=Path, metavar="DIR", help="a checkpoint instead of these")
    parser.add_argument("--name", help="of the checkpoint, in the table")
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="default: the demo's held-out text"
    )
    parser.add_argument("--tokens", type=int, default=8192, help="of the text (default 8192)")
    parser.add_argument("--random-tokens", type=int, default=2048, help="for the Gaussian model")
    parser.add_argument("--window", type=int, default=1024, help="tokens from an empty state")
    parser.add_argument("--study", action="store_true", help="formats of dense weights and head")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, metavar="DIR", help="for what is made on the way")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--quiet", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SparseFlowError as problem:
        sys.exit(f"error: {problem}")
