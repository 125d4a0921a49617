"""The value of each target, from the measurements that it needs. What cannot be measured says why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sparseflow.bench import prepare_speed, replay_rates
from sparseflow.bench.pairs import Note
from sparseflow.bench.statistics import median
from sparseflow.bench.target_runs import TargetRuns
from sparseflow.bench.targets import TARGETS, Outcome, outcome
from sparseflow.errors import ConfigError, SparseFlowError

INTERRUPTED = "interrupted"
Value = tuple[float, str]
"""(value, what to know about it)"""


def run_targets(
    runs: TargetRuns,
    only: Collection[str] = (),
    note: Note | None = None,
    measured: Mapping[str, Outcome] | None = None,
) -> list[Outcome]:
    """One outcome for each target, or for those whose name or group is in `only`; `measured` are taken over.

    Ctrl-C ends it: the targets that are left then say INTERRUPTED. Raises ConfigError for a name that no target has.
    """
    known = {*TARGETS, *(target.group for target in TARGETS.values())}
    unknown = sorted(set(only) - known)
    if unknown:
        raise ConfigError(f"no target {unknown[0]!r}; known: {', '.join(TARGETS)}")
    outcomes = dict(measured or {})
    chosen = [
        name
        for name, target in TARGETS.items()
        if name not in outcomes and (not only or name in only or target.group in only)
    ]
    try:
        for number, name in enumerate(chosen):
            if note is not None:
                note("targets", number, len(chosen))
            outcomes[name] = _measure(name, runs)
    except KeyboardInterrupt:  # hours may have passed: what was measured is worth showing
        outcomes |= {
            name: outcome(name, None, INTERRUPTED) for name in chosen if name not in outcomes
        }
    return [outcomes[name] for name in TARGETS if name in outcomes]


def _measure(name: str, runs: TargetRuns) -> Outcome:
    try:
        value, reason = VALUES[name](runs)
    except (SparseFlowError, RuntimeError) as error:  # RuntimeError: a measured program crashed
        return outcome(name, None, " ".join(str(error).split()))
    return outcome(name, value, reason)


def _figures(row: dict[str, Any], phase: str) -> dict[str, Any]:
    found: dict[str, Any] | None = row["figures"][phase]
    if found is None:
        raise ConfigError(f"no {phase} was measured")
    return found


def _floor_share(runs: TargetRuns, key: str, **how: Any) -> Value:
    row = runs.resident(key, **how)
    figures = _figures(row, "decode")
    if figures["doubt"]:
        raise ConfigError(figures["doubt"])
    speed = f"{figures['tokens_per_second']:.1f} tok/s at {figures['memory_speed'] / 1e9:.1f} GB/s"
    return figures["share"], f"{speed}{_unsteady(row)}"


def _peer_ratio(row: dict[str, Any], phase: str) -> Value:
    figures = _figures(row, phase)
    if "ratio" not in figures:
        raise ConfigError("no peer was measured")
    speeds = f"{figures['tokens_per_second']:.2f} / {figures['peer_tokens_per_second']:.2f} tok/s"
    note = f"; {row['limit_note']}" if row["limit_note"] else ""
    return figures["ratio"], f"{speeds}, {row['peer']['label']}{_unsteady(row)}{note}"


def _unsteady(row: dict[str, Any]) -> str:
    count = row["figures"]["num_unsteady"]
    return (
        f"; the machine moved during {count} of {row['figures']['num_pairs']} pairs"
        if count
        else ""
    )


def _resident_ratio(runs: TargetRuns, key: str, phase: str = "decode", isa: str = "auto") -> Value:
    runs.peer(key, isa)  # says what is missing
    return _peer_ratio(runs.resident(key, isa=isa, metric=phase), phase)


def _small_ratio(runs: TargetRuns) -> Value:
    value, reason = _resident_ratio(runs, "int4_small")
    row = runs.resident("int4_small")
    bits = row["container"]["bits_per_weight"]["all"]
    return value, f"{reason}; {bits:.2f} bits a weight"


def _limited_ratio(runs: TargetRuns, gib: int, *, own_read_ahead: bool = False) -> Value:
    row = runs.limited(gib, own_read_ahead=own_read_ahead)
    value, reason = _peer_ratio(row, "decode")
    if row["limit_bytes"] is None:
        raise ConfigError(row["limit_note"])
    return value, f"{row['container']['num_layers']} layers: {reason}"


def _streaming_share(runs: TargetRuns) -> Value:
    try:
        row = runs.limited(8)
    except SparseFlowError:
        row = runs.streaming("int4")
    if row["run"]["store"] != "streaming":  # what fits under the limit is not streamed
        row = runs.streaming("int4")
    figures = _figures(row, "decode")
    if figures["doubt"]:
        raise ConfigError(figures["doubt"])
    read = f"{figures['disk_bytes'] / 1e6:.0f} MB read a token at {figures['disk_speed'] / 1e9:.2f} GB/s"
    return figures["share"], f"{read}{_unsteady(row)}"


def _streaming_prefill(runs: TargetRuns) -> Value:
    row = runs.streaming("int4")
    figures = row["figures"]["prefill"]
    blob = row["measured"]["pairs"][-1]["before"]["blob_bytes"]
    speed = row["figures"]["decode"]["disk_speed"]
    one_pass = figures["touched"] * blob / speed
    resident = runs.resident("int4")["figures"]["prefill"]["seconds"]
    limit = max(one_pass, resident)
    parts = f"{figures['seconds']:.2f} s; pass {one_pass:.2f} s, resident {resident:.2f} s"
    return figures["seconds"] / limit, f"{parts}{_unsteady(row)}"


def _reads_per_touched(runs: TargetRuns, prompt: int) -> Value:
    row = runs.streaming("int4", prompt=prompt, pairs=1)
    phase = row["measured"]["pairs"][-1]["ours"]["prefill"]
    layers = list(zip(phase["layer_reads"], phase["touched"], strict=True))
    worst = max(reads / touched for reads, touched in layers)
    total = sum(reads for reads, _ in layers)
    return worst, f"the worst layer; {total} reads of {sum(t for _, t in layers)} experts touched"


def _cold_start(runs: TargetRuns) -> Value:
    row = runs.cold_start("full" if runs.suite.full is not None else "int4")
    if row["temperature"]["kind"] != "cold":
        raise ConfigError(row["temperature"]["doubt"])
    values, texts = [], []
    for pair in row["measured"]["pairs"]:
        ours = pair["ours"]
        start, disk = (
            ours["start"],
            (pair["before"]["disk_bytes"] + pair["after"]["disk_bytes"]) / 2,
        )
        needed = ours["dense_bytes"] + ours["experts"]["bytes_read"]
        seconds = start["open_seconds"] + start["first_token_seconds"]
        values.append(seconds * disk / needed)
        before = start["interpreter_seconds"] + start["import_seconds"]
        texts.append(f"{seconds:.2f} s + {before:.2f} s interpreter and imports")
    layers = row["container"]["num_layers"]
    return median(values), f"{layers} layers: {texts[-1]}{_unsteady(row)}"


def _python_share(runs: TargetRuns) -> Value:
    split = _figures(runs.resident("int4"), "decode")["split"]
    if not split["has_native_clocks"]:
        raise ConfigError("the runtime has no clocks of its own")
    if not split["closes"]:
        raise ConfigError("native clocks count more than the step took")
    return split["shares"]["python"], "of an INT4 resident step"


VALUES: dict[str, Callable[[TargetRuns], Value]] = {
    "D1": lambda runs: _floor_share(runs, "int8"),
    "D1:1 thread": lambda runs: _floor_share(runs, "int8", threads=1),
    "D1:avx2": lambda runs: _floor_share(runs, "int8", isa="avx2"),
    "D2": lambda runs: _floor_share(runs, "int4"),
    "D2:1 thread": lambda runs: _floor_share(runs, "int4", threads=1),
    "D2:avx2": lambda runs: _floor_share(runs, "int4", isa="avx2"),
    "D3:int8": lambda runs: _resident_ratio(runs, "int8"),
    "D3:int4": lambda runs: _resident_ratio(runs, "int4"),
    "D3:int8 avx2": lambda runs: _resident_ratio(runs, "int8", isa="avx2"),
    "D3:int4 avx2": lambda runs: _resident_ratio(runs, "int4", isa="avx2"),
    "D3s": _small_ratio,
    "D4:8 GiB": lambda runs: _limited_ratio(runs, 8),
    "D4:6 GiB": lambda runs: _limited_ratio(runs, 6),
    "D4:12 GiB": lambda runs: _limited_ratio(runs, 12),
    "D4m:8 GiB": lambda runs: _limited_ratio(runs, 8, own_read_ahead=True),
    "D4m:6 GiB": lambda runs: _limited_ratio(runs, 6, own_read_ahead=True),
    "D5": _streaming_share,
    "P1:slice": lambda runs: _resident_ratio(runs, "int8", "prefill"),
    "P1:int4 slice": lambda runs: _resident_ratio(runs, "int4", "prefill"),
    "P1:full": lambda runs: _resident_ratio(runs, "full", "prefill"),
    "P1:avx2": lambda runs: _resident_ratio(runs, "int8", "prefill", "avx2"),
    "P2": _streaming_prefill,
    "P3:2048": lambda runs: _reads_per_touched(runs, 2048),
    "P3:4096": lambda runs: _reads_per_touched(runs, 4096),
    "C1:13.3 %": lambda runs: replay_rates.miss_rate(runs.suite.routes, 0.133),
    "C1:25 %": lambda runs: replay_rates.miss_rate(runs.suite.routes, 0.25),
    "C1:50 %": lambda runs: replay_rates.miss_rate(runs.suite.routes, 0.5, preloads=True),
    "L1": _cold_start,
    "M1:int8": lambda runs: prepare_speed.share(runs.suite.checkpoint, "int8"),
    "M1:int4": lambda runs: prepare_speed.share(runs.suite.checkpoint, "int4"),
    "M1:memory": lambda runs: prepare_speed.peak(runs.suite.checkpoint, "int4"),
    "O1": _python_share,
}
