"""From measured pairs to the figures that a table shows: speeds, the floor and the share of it, ratios to the peer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparseflow.bench.pairs import Pair, Pairs
from sparseflow.bench.peer import decode_speed, prefill_speed
from sparseflow.bench.split import PARTS, closes
from sparseflow.bench.statistics import median, ratios
from sparseflow.planning.floor import (
    TokenBytes,
    doubt,
    largest_cache_bytes,
    overlap_floor,
    perfect_floor,
    prefill_floor,
    resident_floor,
    shape_token_bytes,
    token_macs,
)
from sparseflow.planning.model_shape import container_shape

Figures = dict[str, Any]


def summarize(pairs: Pairs, container: Path) -> Figures:
    """`decode` and `prefill` of the kept pairs; `decode` is None where no steps were measured."""
    shape = container_shape(container)
    needed, macs = shape_token_bytes(shape), token_macs(shape)
    has_decode = all(pair.ours["decode"]["token_seconds"] for pair in pairs.kept)
    return {
        "decode": _decode(pairs.kept, needed) if has_decode else None,
        "prefill": _prefill(pairs.kept, macs),
        "token_bytes": needed.to_dict(),
        "num_pairs": len(pairs.kept),
        "num_repeated": len(pairs.repeated),
        "num_unsteady": pairs.num_unsteady,
    }


def _decode(pairs: Sequence[Pair], needed: TokenBytes) -> Figures:
    steps = [_step_seconds(pair.ours) for pair in pairs]
    floors = [_decode_floor(pair, needed) for pair in pairs]
    shares = ratios([floor["seconds"] for floor in floors], steps)
    share = median(shares)
    per_token = _disk_bytes_per_token(pairs[-1].ours)
    return {
        "tokens_per_second": median([1 / step for step in steps]),
        "step_seconds": median(steps),
        "floor_seconds": median([floor["seconds"] for floor in floors]),
        "perfect_floor_seconds": median([floor["perfect_seconds"] for floor in floors]),
        "share": share,
        "shares": shares,
        "doubt": doubt(needed, share, largest_cache_bytes()),
        "memory_bytes": needed.resident + per_token,
        "disk_bytes": per_token,
        "memory_speed": median([pair.limits.memory_bytes for pair in pairs]),
        "disk_speed": median([pair.limits.disk_bytes for pair in pairs]),
        "split": _mean_split([pair.ours["decode"] for pair in pairs]),
        **_io_figures(pairs[-1].ours["decode"]),
        **_peer_figures(pairs, decode_speed),
    }


def _prefill(pairs: Sequence[Pair], macs: int) -> Figures:
    seconds = [pair.ours["prefill"]["wall_seconds"] for pair in pairs]
    tokens = pairs[0].ours["prefill"]["tokens"]
    floors = [prefill_floor(macs, tokens, pair.limits.int8_macs) for pair in pairs]
    last = pairs[-1].ours["prefill"]
    return {
        "tokens": tokens,
        "tokens_per_second": median([tokens / each for each in seconds]),
        "seconds": median(seconds),
        "floor_seconds": median(floors),
        "share": median(ratios(floors, seconds)),
        "macs_per_token": macs,
        "int8_rate": median([pair.limits.int8_macs for pair in pairs]),
        "reads": sum(last["layer_reads"]),
        "touched": sum(last["touched"]),
        "split": _mean_split([pair.ours["prefill"] for pair in pairs]),
        **_io_figures(last),
        **_peer_figures(pairs, prefill_speed),
    }


def _step_seconds(report: Mapping[str, Any]) -> float:
    seconds = report["decode"]["token_seconds"]
    return float(sum(seconds) / len(seconds))


def _decode_floor(pair: Pair, needed: TokenBytes) -> dict[str, float]:
    """Mean seconds of the floor over the measured steps of one pair."""
    memory, disk = pair.limits.memory_bytes, pair.limits.disk_bytes
    steps = [step for step in pair.ours["decode"]["step_reads"] if step]
    if not steps or not disk:
        seconds = resident_floor(needed, memory)
        return {"seconds": seconds, "perfect_seconds": seconds}
    overlap = [overlap_floor(needed, step, memory, disk) for step in steps]
    perfect = [perfect_floor(needed, step, memory, disk) for step in steps]
    return {
        "seconds": sum(overlap) / len(steps),
        "perfect_seconds": sum(perfect) / len(steps),
    }


def _disk_bytes_per_token(report: Mapping[str, Any]) -> int:
    decode = report["decode"]
    return int(decode["experts"]["bytes_read"] / max(1, decode["tokens"]))


def _mean_split(phases: Sequence[Mapping[str, Any]]) -> Figures:
    """Share of each part, and whether it can be trusted: without native clocks all would be `python`."""
    wall = sum(phase["wall_seconds"] for phase in phases)
    parts = {part: sum(phase["split"][part] for phase in phases) / wall for part in PARTS}
    return {
        "shares": parts,
        "has_native_clocks": all(phase["native_seconds"] for phase in phases),
        "closes": all(closes(phase["split"], phase["wall_seconds"]) for phase in phases),
    }


def _io_figures(phase: Mapping[str, Any]) -> Figures:
    """Of one run: lookups, mean reads in flight, CPU use in all and while computation stood still."""
    experts = phase["experts"]
    busy, wait = experts["read_busy_seconds"], experts["read_wait_seconds"]
    lookups = experts["hits"] + experts["misses"]
    return {
        "hit_rate": experts["hits"] / lookups if lookups else None,
        "wait_seconds": wait,
        "read_speed": experts["bytes_read"] / busy if busy > 0 else None,
        "cpus": phase["cpu_seconds"] / phase["wall_seconds"],
        "wait_cpus": experts["wait_cpu_seconds"] / wait if wait > 0 else None,
        "mean_queue_depth": experts["read_flight_seconds"] / busy if busy > 0 else None,
    }


def _peer_figures(pairs: Sequence[Pair], speed: Any) -> Figures:
    if any(pair.theirs is None for pair in pairs):
        return {}
    ours = [speed(pair.ours) for pair in pairs]
    theirs = [speed(pair.theirs) for pair in pairs]
    if not all(theirs):
        return {}
    each = ratios(ours, theirs)
    return {
        "peer_tokens_per_second": median(theirs),
        "ratios": each,
        "ratio": median(each),
        "peer_read_bytes": pairs[-1].theirs["watch"]["read_bytes"] if pairs[-1].theirs else None,
    }
