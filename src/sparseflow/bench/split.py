"""Where the seconds of a step go. Parts are measured by native clocks around native calls; what is left of the wall
clock is Python, dispatch and the caller.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparseflow.native import _ext

PARTS = (
    "embedding",
    "delta",
    "attention",
    "router",
    "expert_compute",
    "expert_wait",
    "head",
    "other_native",
    "python",
)
CLOSES_WITHIN = 0.02
_NAMES = {
    "embedding": "embedding",
    "delta": "delta",
    "attention": "attention",
    "router": "router",
    "experts": "expert_compute",
    "head": "head",
}
"""Native part -> line of the table; parts that are not listed are `other_native`."""


def split_step(native: Mapping[str, float], wall: float, wait: float) -> dict[str, float]:
    """Seconds by PARTS; they add up to `wall`.

    native: by the runtime's names; its `experts` includes waiting for reads, `wait` seconds.
    """
    parts = dict.fromkeys(PARTS, 0.0)
    for name, seconds in native.items():
        parts[_NAMES.get(name, "other_native")] += seconds
    parts["expert_wait"] = min(wait, parts["expert_compute"])
    parts["expert_compute"] -= parts["expert_wait"]
    parts["python"] = wall - sum(parts.values())
    return parts


def closes(parts: Mapping[str, float], wall: float) -> bool:
    """Whether the native clocks did not count more than the wall clock: the rest may not be negative."""
    return parts["python"] >= -CLOSES_WITHIN * wall


def take_native_times(runtime: _ext.Runtime) -> dict[str, float]:
    """Seconds by native part since the last call; they start again at zero."""
    return runtime.take_times()
