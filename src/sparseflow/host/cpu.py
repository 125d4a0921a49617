"""The CPUs that this process may use: affinity, physical cores, performance cores, and the quota of control groups."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sparseflow.host.cgroup import find_groups, read_number
from sparseflow.host.mounts import ROOT


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """What this process may compute on."""

    model: str
    """As the CPU calls itself; empty if it does not."""
    num_logical: int
    """Of the machine, hyperthreads counted, as far as they are on line."""
    num_allowed: int
    """Within this process's affinity, which job schedulers and cpusets of control groups narrow."""
    num_performance: int
    """Performance CPUs among those allowed on a hybrid machine; 0 where all are alike."""
    num_cores: int
    """Physical cores that the default uses: those of the performance CPUs, or all that are allowed."""
    quota: float | None
    """CPUs' worth of time; None without a quota."""
    default_threads: int


def cpu_facts(root: Path = ROOT, allowed: frozenset[int] | None = None) -> CpuFacts:
    """Reads below `root`: /proc/cpuinfo, /sys/devices, control groups. `allowed`: the affinity, if not the real one."""
    allowed = frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    online = _parse_list(root / "sys/devices/system/cpu/online")
    return CpuFacts(
        model=_model_name(root / "proc/cpuinfo"),
        num_logical=len(online | allowed),
        num_allowed=len(allowed),
        num_performance=len(allowed & _performance_cpus(root)),
        num_cores=len(physical_cores(usable_cpus(root, allowed), root)),
        quota=cpu_quota(root),
        default_threads=default_threads(root, allowed),
    )


def default_threads(root: Path = ROOT, allowed: frozenset[int] | None = None) -> int:
    """One thread for each physical performance core within affinity, and no more than the CPU quota pays for.

    A quota is rounded down, to no less than one: threads that spin on time that nobody pays for stop all others.
    """
    cores = len(physical_cores(usable_cpus(root, allowed), root))
    quota = cpu_quota(root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def usable_cpus(root: Path = ROOT, allowed: frozenset[int] | None = None) -> frozenset[int]:
    """Logical CPUs within this process's affinity; on hybrid machines the performance cores among them, if any."""
    allowed = frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    return (allowed & _performance_cpus(root)) or allowed


def physical_cores(cpus: frozenset[int], root: Path = ROOT) -> set[frozenset[int]]:
    """The sets of logical CPUs that share a core; a CPU whose siblings are not told counts as a core."""
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return {(_parse_list(root / topology.format(cpu)) & cpus) or frozenset({cpu}) for cpu in cpus}


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that the tightest control group grants; None without a quota."""
    version, groups = find_groups("cpu", root)
    quotas = [_group_quota(group, version) for group in groups]
    return min((quota for quota in quotas if quota is not None), default=None)


def _performance_cpus(root: Path) -> frozenset[int]:
    return _parse_list(root / "sys/devices/cpu_core/cpus")


def _model_name(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return " ".join(next(names, "").split())


def _group_quota(group: Path, version: int) -> float | None:
    if version == 2:
        try:
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        except (OSError, ValueError):
            return None
        return None if quota == "max" else int(quota) / int(period)
    granted, every = (
        read_number(group / "cpu.cfs_quota_us"),
        read_number(group / "cpu.cfs_period_us"),
    )
    return granted / every if granted is not None and every and granted > 0 else None


def _parse_list(path: Path) -> frozenset[int]:
    """A list such as `0-3,8`; empty if the file is absent."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return frozenset()
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
