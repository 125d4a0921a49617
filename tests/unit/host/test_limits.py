"""Limits of control groups, read from trees as both versions show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparseflow.host.cgroup import find_groups
from sparseflow.host.cpu import cpu_quota, physical_cores
from sparseflow.host.memory import memory_facts

GIB = 1 << 30
MEMINFO = f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {12 * GIB // 1024} kB\nSwapTotal: 0 kB\nHugePages_Total: 0\n"


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


@pytest.fixture
def version_2(tmp_path: Path) -> Path:
    return _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/job\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
            "sys/fs/cgroup/user.slice/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/user.slice/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/user.slice/memory.stat": f"anon {GIB}\ninactive_file {GIB}\nactive_file {GIB // 2}\n",
            "sys/fs/cgroup/user.slice/job/memory.max": "max\n",
            "sys/fs/cgroup/user.slice/job/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
        },
    )


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    return _write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {GIB // 4}\ntotal_active_file 0\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )


def test_limit_of_an_ancestor_binds(version_2: Path) -> None:
    facts = memory_facts(version_2)
    assert facts.limit_bytes == 4 * GIB
    assert facts.available_bytes == 4 * GIB - 3 * GIB + GIB + GIB // 2


def test_paths_of_the_host_fall_back_to_the_top_of_the_mount(version_1: Path) -> None:
    facts = memory_facts(version_1)
    assert facts.limit_bytes == 2 * GIB
    assert facts.available_bytes == GIB + GIB // 4


def test_version_1_number_for_no_limit_is_none(version_1: Path) -> None:
    _write(version_1, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"})
    facts = memory_facts(version_1)
    assert facts.limit_bytes is None
    assert facts.available_bytes == 12 * GIB


def test_without_control_groups_the_system_is_the_limit(tmp_path: Path) -> None:
    facts = memory_facts(_write(tmp_path, {}))
    assert (facts.total_bytes, facts.available_bytes, facts.limit_bytes) == (
        16 * GIB,
        12 * GIB,
        None,
    )
    assert find_groups("memory", tmp_path) == (0, [])


def test_quota_is_the_tightest_of_all_groups(version_2: Path) -> None:
    assert cpu_quota(version_2) == 1.5


def test_quota_of_version_1_is_found_under_a_joint_mount(version_1: Path) -> None:
    assert cpu_quota(version_1) == 2.0


def test_hyperthreads_of_a_core_count_once(tmp_path: Path) -> None:
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    _write(tmp_path, {topology.format(cpu): f"{cpu % 2},{cpu % 2 + 2}\n" for cpu in range(4)})
    assert physical_cores(frozenset(range(4)), tmp_path) == {frozenset({0, 2}), frozenset({1, 3})}


def test_cpu_outside_affinity_does_not_count(tmp_path: Path) -> None:
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    _write(tmp_path, {topology.format(cpu): "0-1\n" for cpu in range(2)})
    assert physical_cores(frozenset({1}), tmp_path) == {frozenset({1})}


def test_this_machine_has_memory_and_cpus() -> None:
    from sparseflow.host.cpu import default_threads

    facts = memory_facts()
    assert 0 < facts.available_bytes <= facts.total_bytes
    assert default_threads() >= 1
