"""Tables of rows and outcomes: as headings and cells, from which rich tables and Markdown are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparseflow.bench.peer import Trial
from sparseflow.bench.split import PARTS
from sparseflow.bench.targets import Outcome
from sparseflow.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table without a look."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_markdown(self) -> str:
        lines = [
            f"## {self.title}",
            "",
            _markdown_line(self.headings),
            "|" + "---|" * len(self.headings),
            *map(_markdown_line, self.rows),
        ]
        return "\n".join(lines) + "\n"


def _markdown_line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def cells_sheet(rows: Mapping[str, Mapping[str, Any]]) -> Sheet:
    """A line for each row that was measured: speeds, floor, share, bytes, the peer."""
    headings = (
        "cell", "prefill tok/s", "decode tok/s", "floor tok/s", "share", "read / token", "hit rate",
        "peer tok/s", "ratio", "python", "notes",
    )  # fmt: skip
    return Sheet("Cells", headings, [_cell_line(name, row) for name, row in rows.items()])


def _cell_line(name: str, row: Mapping[str, Any]) -> list[str]:
    prefill, decode = row["figures"]["prefill"], row["figures"]["decode"]
    line = [name, _speed(prefill["tokens_per_second"])]
    if decode is None:
        peer = prefill
        line += ["-", "-", "-", "-", _share(prefill["hit_rate"])]
    else:
        peer = decode
        line += [
            _speed(decode["tokens_per_second"]),
            _speed(1 / decode["floor_seconds"]),
            "-" if decode["doubt"] else _share(decode["share"]),
            format_bytes(decode["disk_bytes"]),
            _share(decode["hit_rate"]),
        ]
    split = peer["split"]
    line += [
        _speed(peer.get("peer_tokens_per_second")),
        f"{peer['ratio']:.2f}x" if "ratio" in peer else "-",
        _share(split["shares"]["python"]) if split["has_native_clocks"] else "-",
        "; ".join(_notes(row)),
    ]
    return line


def _notes(row: Mapping[str, Any]) -> list[str]:
    """What a reader must know: cold or not, limits that could not be made, a machine that moved, doubts."""
    figures, notes = row["figures"], []
    temperature = row["temperature"]
    if temperature["kind"] != "warm":
        doubt = f" ({temperature['doubt']})" if temperature["doubt"] else ""
        notes.append(temperature["kind"] + doubt)
    if row["limit_note"]:
        notes.append(f"unlimited: {row['limit_note']}")
    if figures["num_unsteady"]:
        notes.append(f"the machine moved in {figures['num_unsteady']} of {figures['num_pairs']}")
    if figures["decode"] is not None and figures["decode"]["doubt"]:
        notes.append(figures["decode"]["doubt"])
    return notes


def split_sheet(rows: Mapping[str, Mapping[str, Any]]) -> Sheet:
    """Where the time of a decode step goes, in microseconds; where none was measured, of the prompt."""
    lines = []
    for name, row in rows.items():
        decode, prefill = row["figures"]["decode"], row["figures"]["prefill"]
        phase, seconds = (
            (prefill, prefill["seconds"]) if decode is None else (decode, decode["step_seconds"])
        )
        if not phase["split"]["has_native_clocks"]:
            continue
        shares = phase["split"]["shares"]
        parts = [format_seconds(max(0.0, shares[part] * seconds)) for part in PARTS]
        lines.append(
            [name, "prompt" if decode is None else "step", *parts, format_seconds(seconds)]
        )
    return Sheet("Where a step's time goes", ("cell", "of", *PARTS, "sum"), lines)


def limits_sheet(rows: Mapping[str, Mapping[str, Any]]) -> Sheet:
    """What the machine gave around each row, and how the run used it."""
    headings = (
        "cell", "memory GB/s", "disk GB/s", "int8 G/s", "CPUs", "in waits", "queue depth",
        "huge pages", "anonymous", "files", "swapped out", "OOM",
    )  # fmt: skip
    lines = []
    for name, row in rows.items():
        pair = row["measured"]["pairs"][-1]
        probe, watch = pair["after"], pair["ours"]["watch"]
        phase = row["figures"]["decode"] or row["figures"]["prefill"]
        lines.append([
            name, f"{probe['memory_bytes'] / 1e9:.1f}", f"{probe['disk_bytes'] / 1e9:.2f}",
            f"{probe['int8_macs'] / 1e9:.0f}", f"{phase['cpus']:.2f}",
            _number(phase["wait_cpus"]), _number(phase["mean_queue_depth"]),
            format_bytes(pair["ours"]["anon_huge_bytes"]), format_bytes(watch["anonymous_peak_bytes"]),
            format_bytes(watch["file_peak_bytes"]), str(watch["pswpout"]), str(watch["oom_kills"]),
        ])  # fmt: skip
    return Sheet("What the machine gave", headings, lines)


def targets_sheet(outcomes: Sequence[Outcome]) -> Sheet:
    """The targets with their verdicts."""
    headings = ("target", "what", "measured", "at least", "aim", "verdict", "how")
    return Sheet("Targets", headings, [_outcome_line(each) for each in outcomes])


def _outcome_line(each: Outcome) -> list[str]:
    target = each.target

    def show(value: float) -> str:
        return format_bytes(value) if target.unit == "bytes" else f"{value:.3g}{target.unit}"

    bound = "at most " if target.is_upper_bound else ""
    value = "-" if each.value is None else show(each.value)
    how = f"not measured: {each.reason}" if each.value is None else each.reason
    verdict = each.verdict if each.value is not None else "-"
    return [
        target.name,
        target.what,
        value,
        bound + show(target.at_least),
        show(target.aim),
        verdict,
        how,
    ]


def trials_sheet(trials: Mapping[str, Sequence[Trial]]) -> Sheet:
    """Every setting of the peer that was tried."""
    lines = [
        [name, trial.setting.label(), _speed(trial.decode), _speed(trial.prefill), trial.problem]
        for name, tried in trials.items()
        for trial in tried
    ]
    headings = ("search", "setting", "decode tok/s", "prefill tok/s", "problem")
    return Sheet("The peer's settings that were tried", headings, lines)


def facts_line(row: Mapping[str, Any]) -> str:
    """Machine, code and container of a row, for people."""
    machine, code, container = row["machine"], row["code"], row["container"]
    commit = (code["commit"] or "no checkout")[:12] + (
        "" if code["is_clean"] else ", changed files"
    )
    bits = container["bits_per_weight"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {format_bytes(machine['memory_bytes'])}, "
        f"Linux {machine['kernel']}; {container['filesystem']} on {container['device']}; "
        f"{container['recipe']} ({bits['all']:.2f} bits a weight: experts {bits['experts']:.2f}, "
        f"dense {bits['dense']:.2f}, head {bits['head']:.2f}), {container['num_layers']} layers; "
        f"{row['run']['isa']}, {row['run']['threads']} threads, {row['run']['io']}; "
        f"version {code['version']} ({commit})"
    )


def _speed(value: float | None) -> str:
    return "-" if not value else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
