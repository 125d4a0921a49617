"""llama.cpp beside us: started through benchmarks/peers of a source checkout, its best setting searched first."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sparseflow.bench.cell import start
from sparseflow.bench.limits import MemoryGroup
from sparseflow.errors import ConfigError, SparseFlowError

DRIVER = Path(__file__).parents[3] / "benchmarks" / "peers" / "llama_cpp.py"
"""Where it lies in a source checkout; an installed package has none."""
HUGE_PAGES = ("env", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1")
"""Before a program: its large allocations ask for huge pages."""
SEARCH_PROMPT = 128
SEARCH_NEW = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """What the search varies."""

    threads: int
    load: str = "none"
    """How it holds its weights: `none` (memory of its own), `mmap`, `dio`."""
    repack: int = 1
    """Whether weights are rearranged for the CPU while loading."""
    ubatch: int = 512
    huge_pages: int = 0
    """Whether its allocator asks for them; models that are mapped have none."""
    read_ahead_kib: int | None = None
    """None: the machine's own."""

    def label(self) -> str:
        ahead = "" if self.read_ahead_kib is None else f", read-ahead {self.read_ahead_kib} KiB"
        huge = ", huge pages" if self.huge_pages else ""
        return (
            f"{self.threads} threads, load {self.load}, repack {self.repack}, ubatch {self.ubatch}"
            f"{huge}{ahead}"
        )


@dataclass(frozen=True, slots=True)
class Peer:
    """A build and a model file of the same weights."""

    build: Path
    model: Path
    driver: Path = DRIVER

    def check(self) -> None:
        """Raises ConfigError for what is not there, before anything is measured."""
        if not self.driver.is_file():
            raise ConfigError(
                f"{self.driver}: no such file; peers need a source checkout, or --peer-driver FILE"
            )
        if not self.build.is_dir():
            raise ConfigError(f"{self.build}: no such directory; give llama.cpp=BUILD_OR_PREFIX")
        if not self.model.is_file():
            raise ConfigError(f"{self.model}: no such file; give --peer-model FILE.gguf")

    def run(
        self,
        prompt: Sequence[int],
        new: int,
        setting: Setting,
        *,
        warm_up: int = 0,
        group: MemoryGroup | None = None,
    ) -> dict[str, Any]:
        """The driver's report, with `setting` and `watch`. Raises what the driver's end means."""
        with tempfile.TemporaryDirectory(prefix="sparseflow-peer-") as directory:
            ids, out = Path(directory) / "prompt.json", Path(directory) / "report.json"
            ids.write_text(json.dumps(list(prompt)), encoding="utf-8")
            command = [
                *(HUGE_PAGES if setting.huge_pages else ()),
                sys.executable, str(self.driver), "run", "--build", str(self.build),
                "--gguf", str(self.model), "--prompt", str(ids), "--new", str(new),
                "--threads", str(setting.threads), "--load", setting.load,
                "--repack", str(setting.repack), "--ubatch", str(setting.ubatch),
                "--warm", str(warm_up), "--json", str(out),
            ]  # fmt: skip
            watch = start(command, Path(directory), group)
            report: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return {**report, "setting": asdict(setting), "watch": watch}


def decode_speed(report: dict[str, Any]) -> float:
    """Measured tokens a second; 0 if none was measured. Of either side's report."""
    seconds = report["decode"]["token_seconds"] if "decode" in report else report["token_seconds"]
    return len(seconds) / sum(seconds) if seconds else 0.0


def prefill_speed(report: dict[str, Any]) -> float:
    """Prompt tokens a second. Of either side's report."""
    if "prefill" in report:
        return float(report["prefill"]["tokens"] / report["prefill"]["wall_seconds"])
    return float(report["prompt_tokens"] / report["prefill_seconds"])


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting that was tried."""

    setting: Setting
    decode: float
    prefill: float
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "label": self.setting.label()}


def search(
    run: Callable[[Setting], dict[str, Any]],
    first: Setting,
    metric: str,
    choices: dict[str, Sequence[Any]],
) -> tuple[Setting, list[Trial]]:
    """The best setting by `metric` (`decode` or `prefill`), one field after another from `first` on, and all trials.

    A setting that fails is listed with its problem. Raises the first problem if none works.
    """
    trials = [_try(run, first)]
    best = trials[0]
    for name, values in choices.items():
        for value in values:
            setting = replace(best.setting, **{name: value})
            if any(trial.setting == setting for trial in trials):
                continue
            trials.append(_try(run, setting))
            if getattr(trials[-1], metric) > getattr(best, metric):
                best = trials[-1]
    if best.problem:
        raise ConfigError(f"the peer ran under no setting: {best.problem}")
    return best.setting, trials


def search_space(first: Setting) -> dict[str, Sequence[Any]]:
    """What is worth trying without a memory limit, in this order."""
    return {
        "repack": (1, 0),
        "load": ("none", "mmap"),
        "huge_pages": (0, 1),
        "threads": sorted({first.threads, max(1, first.threads // 2), first.threads + 1}),
        "ubatch": (512, 128, 2048),
    }


def limited_space(first: Setting, read_ahead: Sequence[int | None]) -> dict[str, Sequence[Any]]:
    """What is worth trying under one: mapped, not rearranged, since copies would not fit."""
    return {"read_ahead_kib": tuple(read_ahead), "threads": (first.threads, first.threads * 2)}


def _try(run: Callable[[Setting], dict[str, Any]], setting: Setting) -> Trial:
    try:
        report = run(setting)
    except SparseFlowError as error:
        return Trial(setting, 0.0, 0.0, str(error))
    return Trial(setting, decode_speed(report), prefill_speed(report))
