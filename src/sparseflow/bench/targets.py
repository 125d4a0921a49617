"""The targets: what each is, what must be shown at least, what we aim at, and whether a measured value meets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """One line of the table."""

    name: str
    """`D1`, `D2`, ... with a variant behind a colon where a target has several numbers."""
    what: str
    at_least: float
    aim: float
    unit: str = ""
    is_upper_bound: bool = False
    """Whether smaller is better."""
    is_only_reported: bool = False
    """Whether nothing depends on it."""

    @property
    def group(self) -> str:
        """The part before the colon."""
        return self.name.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A target and what was measured for it."""

    target: Target
    value: float | None = None
    reason: str = ""
    """Why there is no value; or what to know about it."""

    @property
    def verdict(self) -> str:
        """`aim`, `pass`, `miss`, `not measured`, or `reported` where there is nothing to miss."""
        if self.value is None:
            return "not measured"
        if self.target.is_only_reported:
            return "reported"
        sign = -1 if self.target.is_upper_bound else 1
        if sign * self.value >= sign * self.target.aim:
            return "aim"
        return "pass" if sign * self.value >= sign * self.target.at_least else "miss"

    def to_dict(self) -> dict[str, Any]:
        target = self.target
        return {
            "name": target.name,
            "what": target.what,
            "value": self.value,
            "unit": target.unit,
            "at_least": target.at_least,
            "aim": target.aim,
            "is_upper_bound": target.is_upper_bound,
            "verdict": self.verdict,
            "reason": self.reason,
        }


def _t(name: str, what: str, at_least: float, aim: float, unit: str = "x") -> Target:
    return Target(name, what, at_least, aim, unit)


def _most(name: str, what: str, at_most: float, aim: float, unit: str = "") -> Target:
    return Target(name, what, at_most, aim, unit, is_upper_bound=True)


MIB = float(1 << 20)
_FLOOR = "share of the memory floor"
_BEST = "llama.cpp's best setting"
_TARGETS = (
    _t("D1", f"decode resident, INT8: {_FLOOR}", 0.82, 0.92, ""),
    _t("D1:1 thread", f"decode resident, INT8, 1 thread: {_FLOOR}", 0.80, 0.92, ""),
    _t("D1:avx2", f"decode resident, INT8, AVX2: {_FLOOR}", 0.82, 0.92, ""),
    _t("D2", f"decode resident, INT4: {_FLOOR}", 0.75, 0.88, ""),
    _t("D2:1 thread", f"decode resident, INT4, 1 thread: {_FLOOR}", 0.75, 0.88, ""),
    _t("D2:avx2", f"decode resident, INT4, AVX2: {_FLOOR}", 0.75, 0.88, ""),
    _t("D3:int8", f"decode resident, INT8 / Q8_0 of {_BEST}", 1.15, 1.35),
    _t("D3:int4", f"decode resident, INT4 / Q4_0 of {_BEST}", 1.25, 1.5),
    _t("D3:int8 avx2", "the same, both AVX2: INT8 / Q8_0", 1.15, 1.35),
    _t("D3:int4 avx2", "the same, both AVX2: INT4 / Q4_0", 1.25, 1.5),
    _t("D3s", f"decode resident, int4-small / Q4_0 of {_BEST}", 1.6, 2.0),
    _t("D4:8 GiB", "decode, INT4 full, limit 8 GiB / llama.cpp mmap, best read-ahead", 2.5, 4.0),
    _t("D4:6 GiB", "the same under 6 GiB", 2.5, 4.0),
    Target("D4:12 GiB", "the same under 12 GiB", 2.5, 4.0, "x", is_only_reported=True),
    _t("D4m:8 GiB", "the same, the machine's own read-ahead, 8 GiB", 8.0, 15.0),
    _t("D4m:6 GiB", "the same under 6 GiB", 8.0, 15.0),
    _t("D5", "decode streaming: share of the demand-overlap floor", 0.75, 0.90, ""),
    _t("P1:slice", f"prefill of 512, INT8 resident, slice / {_BEST}", 2.0, 3.0),
    _t("P1:int4 slice", f"prefill of 512, INT4 resident, slice / {_BEST}", 2.0, 3.0),
    _t("P1:full", f"prefill of 512, full / {_BEST}", 2.5, 4.0),
    _t("P1:avx2", "prefill of 512, INT8 slice, both AVX2", 2.0, 3.0),
    _most("P2", "prefill streaming: time / max(one pass of touched experts, resident)", 1.3, 1.1),
    _most("P3:2048", "prefill of 2,048 streaming: reads per touched expert and layer", 1.0, 1.0),
    _most("P3:4096", "prefill of 4,096 streaming: reads per touched expert and layer", 1.0, 1.0),
    _most("C1:13.3 %", "replay, decode misses at 13.3 % capacity, cold", 0.310, 0.182),
    _most("C1:25 %", "replay, decode misses at 25 % capacity, cold", 0.193, 0.133),
    _most("C1:50 %", "replay, decode misses at 50 %, other sessions' heat", 0.075, 0.075),
    _most(
        "L1", "start to first token, cold: time x disk speed / bytes that must be read", 1.5, 1.1
    ),
    _t("M1:int8", "prepare int8: throughput / min(read, write) of the disk", 0.5, 0.8, ""),
    _t("M1:int4", "prepare int4: throughput / min(read, write) of the disk", 0.25, 0.5, ""),
    _most("M1:memory", "prepare: peak memory", 700 * MIB, 400 * MIB, "bytes"),
    _most("O1", "share of a decode step in Python and dispatch", 0.05, 0.02),
)
TARGETS = {target.name: target for target in _TARGETS}


def outcome(name: str, value: float | None, reason: str = "") -> Outcome:
    """A measured value of the named target. REQUIRES: a name of TARGETS."""
    return Outcome(TARGETS[name], value, reason)


def all_met(outcomes: list[Outcome]) -> bool:
    """Whether nothing that was measured misses what must be shown."""
    return all(each.verdict != "miss" for each in outcomes)
