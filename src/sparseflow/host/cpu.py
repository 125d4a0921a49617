"""The CPUs that this process may use: affinity, physical cores, performance cores, and the quota of control groups."""

from __future__ import annotations

import os
from pathlib import Path

from sparseflow.host.cgroup import ROOT, find_groups, read_number


def default_threads(root: Path = ROOT) -> int:
    """One thread for each physical performance core within affinity, and no more than the CPU quota pays for."""
    cores = len(physical_cores(usable_cpus(root), root))
    quota = cpu_quota(root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def usable_cpus(root: Path = ROOT) -> frozenset[int]:
    """Logical CPUs within this process's affinity; on hybrid machines the performance cores among them, if any."""
    allowed = frozenset(os.sched_getaffinity(0))
    fast = _parse_list(root / "sys/devices/cpu_core/cpus")
    return (allowed & fast) or allowed


def physical_cores(cpus: frozenset[int], root: Path = ROOT) -> set[frozenset[int]]:
    """The sets of logical CPUs that share a core; a CPU whose siblings are not told counts as a core."""
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return {(_parse_list(root / topology.format(cpu)) & cpus) or frozenset({cpu}) for cpu in cpus}


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that the tightest control group grants; None without a quota."""
    version, groups = find_groups("cpu", root)
    quotas = [_group_quota(group, version) for group in groups]
    return min((quota for quota in quotas if quota is not None), default=None)


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
