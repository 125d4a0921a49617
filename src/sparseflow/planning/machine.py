"""The machine that a plan is for: this one, measured in a few seconds, or another one, described in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparseflow.errors import ConfigError
from sparseflow.units import parse_size

DECODE_SHARE = 0.88
"""Of memory read speed that the kernels reach with one row, where they are not measured (docs/results.md, D1)."""
MACS_PER_BYTE = 9.0
"""int8 multiply-accumulates a second over memory bytes a second of two cores with AVX2, where nothing is measured."""
FLOAT_SHARE = 0.25
"""Of int8 multiply-accumulates that float32 ones reach, where they are not measured."""
TYPICAL_DISK = 1.9e9
TYPICAL_MEMORY = 30e9
SYSTEM_SHARE = 5
"""A fifth of a described machine's memory, at least SYSTEM_LEAST, is left to its system and a browser."""
SYSTEM_LEAST = 3 << 29
KEYS = ("ram", "disk", "memory", "macs")
_RATE = re.compile(r"(.*?)(?:/s)?")


@dataclass(frozen=True, slots=True)
class Machine:
    """What speed and room depend on. Rates are a second."""

    available_bytes: int
    """Memory that may be used, before any margin."""
    limit_bytes: int | None
    """Of this process's control groups."""
    total_bytes: int
    disk: float
    """Bytes, whole experts at the engine's queue depth."""
    first_read_seconds: float
    """Of one whole expert read alone, beyond what `disk` would take."""
    memory: float
    """Bytes that all threads read together."""
    floats: float
    """float32 multiply-accumulates of a matrix with many rows."""
    single: Mapping[str, float]
    """By format: bytes of weights that one row of input is multiplied with."""
    many: Mapping[str, float]
    """By format: multiply-accumulates with many rows of input."""
    origin: str
    """`measured`, `described` or `assumed`: how much to believe."""

    def single_rate(self, weight_format: str) -> float:
        return self.single.get(weight_format, self.memory * DECODE_SHARE)

    def many_rate(self, weight_format: str) -> float:
        rate = self.many.get(weight_format)
        return self.floats if rate is None else rate


def between(before: Machine, after: Machine) -> Machine:
    """The mean of two measurements: what a run between them met."""

    def mean(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
        return {name: (a[name] + b[name]) / 2 for name in a}

    return replace(
        after,
        disk=(before.disk + after.disk) / 2,
        first_read_seconds=(before.first_read_seconds + after.first_read_seconds) / 2,
        memory=(before.memory + after.memory) / 2,
        floats=(before.floats + after.floats) / 2,
        single=mean(before.single, after.single),
        many=mean(before.many, after.many),
    )


def moved(before: Machine, after: Machine) -> float:
    """The largest relative change of a rate that decode depends on: a product of one row, the disk."""
    pairs = [
        (before.disk, after.disk),
        *((before.single[n], after.single[n]) for n in before.single),
    ]
    return max(abs(a - b) / min(a, b) for a, b in pairs)


def assumed_machine(total_bytes: int, available_bytes: int, limit_bytes: int | None) -> Machine:
    """This machine's memory, typical speeds."""
    typical = _described({"memory": TYPICAL_MEMORY, "disk": TYPICAL_DISK}, 0)
    return replace(
        typical,
        total_bytes=total_bytes,
        available_bytes=available_bytes,
        limit_bytes=limit_bytes,
        origin="assumed",
    )


def parse_machine(text: str) -> Machine:
    """A machine such as `ram=8GiB,disk=1.9GB/s,memory=35GB/s`; macs=200G says its int8 arithmetic.

    Two cores with AVX2 are assumed where nothing is said. Raises ConfigError for what cannot be read.
    """
    given: dict[str, float] = {}
    for part in text.split(","):
        key, separator, value = part.partition("=")
        key = key.strip()
        if key not in KEYS or not separator:
            raise ConfigError(
                f"--machine {text!r}: {part!r} is not one of {', '.join(KEYS)}; "
                "write for example ram=8GiB,disk=1.9GB/s,memory=35GB/s"
            )
        found = _RATE.fullmatch(value.strip())
        assert found is not None
        given[key] = parse_size(found[1])
        if given[key] <= 0:
            raise ConfigError(f"--machine {text!r}: {key} must be above 0")
    if "ram" not in given:
        raise ConfigError(f"--machine {text!r}: ram is missing, for example ram=16GiB")
    return _described(given, int(given["ram"]))


def _described(given: Mapping[str, float], ram: int) -> Machine:
    memory = given.get("memory", TYPICAL_MEMORY)
    macs = given.get("macs", memory * MACS_PER_BYTE)
    left = max(SYSTEM_LEAST, ram // SYSTEM_SHARE)
    return Machine(
        available_bytes=max(0, ram - left),
        limit_bytes=None,
        total_bytes=ram,
        disk=given.get("disk", TYPICAL_DISK),
        first_read_seconds=0.0,
        memory=memory,
        floats=macs * FLOAT_SHARE,
        single={},
        many=dict.fromkeys(_INTEGER_FORMATS, macs),
        origin="described",
    )


_INTEGER_FORMATS: Sequence[str] = (
    "int8-v1",
    "int8-g64-v1",
    "int6-g64-v1",
    "int4-g64-v1",
    "int4-g32-v1",
)


def measure_machine(
    files: Sequence[tuple[Path, int]],
    formats: Sequence[str],
    threads: int,
    isa: str,
    queue_depth: int,
) -> Machine:
    """This machine, now; takes a few seconds. files: (path, bytes of one read) to read from, the first that is large
    enough is taken; none: a typical disk is assumed. Raises StorageError.
    """
    from sparseflow.host.memory import memory_facts
    from sparseflow.native import _ext
    from sparseflow.planning.kernel_rates import float_rate, many_rows_rate, single_row_rate
    from sparseflow.planning.speeds import memory_speed, quick_read_speeds

    memory = memory_facts()
    runtime = _ext.Runtime(isa, threads)
    disk, first = TYPICAL_DISK, 0.0
    for path, read_bytes in files:
        if path.stat().st_size >= 32 * read_bytes:
            disk, first = quick_read_speeds(path, read_bytes, queue_depth)
            break
    return Machine(
        available_bytes=memory.available_bytes,
        limit_bytes=memory.limit_bytes,
        total_bytes=memory.total_bytes,
        disk=disk,
        first_read_seconds=first,
        memory=max(memory_speed(runtime, "read"), memory_speed(runtime, "dot")),
        floats=float_rate(runtime),
        single={name: single_row_rate(runtime, name) for name in formats},
        many={name: many_rows_rate(runtime, name) for name in formats},
        origin="measured",
    )
