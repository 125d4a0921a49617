"""Limits of memory and CPUs as whole machines show them: /proc and /sys of hosts, containers and jobs, recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparseflow.host.cpu import cpu_facts, cpu_quota, default_threads
from sparseflow.host.limits import process_limits
from sparseflow.host.memory import memory_facts

GIB = 1 << 30
NO_LIMIT_V1 = "9223372036854771712\n"
MEMINFO = (
    f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {12 * GIB // 1024} kB\n"
    f"SwapTotal: {8 * GIB // 1024} kB\nSwapFree: {5 * GIB // 1024} kB\n"
    f"CommitLimit: {10 * GIB // 1024} kB\nCommitted_AS: {7 * GIB // 1024} kB\n"
)

VERSION_1_MOUNTS = """\
22 27 0:21 / /proc rw - proc proc rw
35 31 0:32 {shown} /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
36 31 0:33 {shown} /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
"""
VERSION_2_MOUNT = "31 23 0:28 {shown} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


def group_1(directory: str, limit: int | None, usage: int, **more: str) -> dict[str, str]:
    """Files of a version 1 memory group."""
    place = f"sys/fs/cgroup/memory{directory}"
    bound = NO_LIMIT_V1 if limit is None else f"{limit}\n"
    files = {"memory.limit_in_bytes": bound, "memory.usage_in_bytes": f"{usage}\n"}
    files |= {name.replace("__", "."): text for name, text in more.items()}
    return {f"{place}/{name}": text for name, text in files.items()}


def group_2(directory: str, usage: int = 0, **limits: str) -> dict[str, str]:
    """Files of a version 2 group; memory_high stands for memory.high."""
    place = f"sys/fs/cgroup{directory}"
    files = {"cgroup.controllers": "cpu memory\n", "memory.current": f"{usage}\n"}
    files |= {name.replace("_", ".", 1): f"{text}\n" for name, text in limits.items()}
    return {f"{place}/{name}": text for name, text in files.items()}


def test_plain_version_1_without_limits(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/mountinfo": VERSION_1_MOUNTS.format(shown="/"),
            "proc/self/cgroup": "5:memory:/user.slice\n4:cpu,cpuacct:/user.slice\n",
            **group_1("", None, 4 * GIB),
            **group_1("/user.slice", None, 3 * GIB),
            "sys/fs/cgroup/cpu,cpuacct/user.slice/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/user.slice/cpu.cfs_period_us": "100000\n",
        },
    )
    facts = memory_facts(root)
    assert (facts.cgroup_version, facts.limit_bytes, facts.limit_source) == (1, None, "")
    assert facts.available_bytes == 12 * GIB
    assert (facts.swap_bytes, facts.swap_used_bytes) == (8 * GIB, 3 * GIB)
    assert facts.swap_limit_bytes is None
    assert cpu_quota(root) is None


def test_version_1_every_ancestor_binds(tmp_path: Path) -> None:
    stat = f"hierarchical_memory_limit {4 * GIB}\n"
    root = tree(
        tmp_path,
        {
            "proc/self/mountinfo": VERSION_1_MOUNTS.format(shown="/"),
            "proc/self/cgroup": "5:memory:/batch/job_7/step_0\n4:cpu,cpuacct:/batch\n",
            **group_1("/batch", 10 * GIB, 9 * GIB),
            **group_1("/batch/job_7", 4 * GIB, GIB, memory__memsw__limit_in_bytes=f"{6 * GIB}\n"),
            **group_1("/batch/job_7/step_0", None, GIB // 2, memory__stat=stat),
        },
    )
    facts = memory_facts(root)
    assert facts.limit_bytes == 4 * GIB
    assert facts.limit_source == "/sys/fs/cgroup/memory/batch/job_7/memory.limit_in_bytes"
    assert (
        facts.available_bytes == GIB
    )  # what the outer job's neighbours leave, not what its own limit would
    assert facts.swap_limit_bytes == 2 * GIB


def test_version_1_limit_above_a_containers_mount_is_known_from_its_statistics(
    tmp_path: Path,
) -> None:
    stat = f"hierarchical_memory_limit {3 * GIB}\ntotal_inactive_file 0\ntotal_active_file 0\n"
    root = tree(
        tmp_path,
        {
            "proc/self/mountinfo": VERSION_1_MOUNTS.format(shown="/docker/abc"),
            "proc/self/cgroup": "5:memory:/docker/abc/inner\n4:cpu,cpuacct:/docker/abc\n",
            **group_1("", None, 2 * GIB),
            **group_1("/inner", None, GIB, memory__stat=stat),
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    facts = memory_facts(root)
    assert facts.limit_bytes == 3 * GIB
    assert facts.available_bytes == 2 * GIB
    assert cpu_quota(root) == 0.5


def test_version_2_user_slice_of_systemd(tmp_path: Path) -> None:
    scope = "/user.slice/user-1000.slice/user@1000.service/app.slice/run-u7.scope"
    root = tree(
        tmp_path,
        {
            "proc/self/mountinfo": VERSION_2_MOUNT.format(shown="/"),
            "proc/self/cgroup": f"0::{scope}\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
            **group_2("/user.slice", 6 * GIB, memory_max="max", cpu_max="max 100000"),
            **group_2("/user.slice/user-1000.slice", 5 * GIB, memory_max=str(9 * GIB)),
            **group_2(scope, GIB, memory_max=str(8 * GIB), cpu_max="250000 100000"),
        },
    )
    facts = memory_facts(root)
    assert (facts.cgroup_version, facts.limit_bytes) == (2, 8 * GIB)
    assert facts.available_bytes == 4 * GIB
    assert cpu_quota(root) == 2.5


@pytest.mark.parametrize("path", ["/", "/../../system.slice/docker-abc.scope"])
def test_version_2_in_a_namespace_of_its_own(tmp_path: Path, path: str) -> None:
    """Docker shows the container's group as the top; a process from outside is above it."""
    root = tree(
        tmp_path,
        {
            "proc/self/mountinfo": VERSION_2_MOUNT.format(shown="/"),
            "proc/self/cgroup": f"0::{path}\n",
            **group_2("", GIB, memory_max=str(2 * GIB), cpu_max="150000 100000"),
        },
    )
    assert memory_facts(root).limit_bytes == 2 * GIB
    assert memory_facts(root).available_bytes == GIB
    assert default_threads(root, frozenset(range(8))) == 1


def test_version_2_in_a_container_with_the_hosts_paths(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/mountinfo": VERSION_2_MOUNT.format(shown="/system.slice/docker-abc.scope"),
            "proc/self/cgroup": "0::/system.slice/docker-abc.scope/worker\n",
            **group_2("", GIB, memory_max=str(6 * GIB)),
            **group_2("/worker", GIB, memory_max=str(5 * GIB)),
        },
    )
    assert memory_facts(root).limit_bytes == 5 * GIB
    (root / "proc/self/cgroup").write_text("0::/elsewhere/worker-2\n", encoding="ascii")
    assert memory_facts(root).limit_bytes == 6 * GIB


def test_version_2_memory_high_binds_before_memory_max(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
            **group_2("/job", GIB, memory_max=str(8 * GIB), memory_high=str(3 * GIB)),
        },
    )
    facts = memory_facts(root)
    assert facts.limit_bytes == 3 * GIB
    assert facts.limit_source == "/sys/fs/cgroup/job/memory.high"
    assert facts.available_bytes == 2 * GIB


@pytest.mark.parametrize(("text", "limit"), [("0", 0), (str(GIB), GIB), ("max", None)])
def test_version_2_swap_limit(tmp_path: Path, text: str, limit: int | None) -> None:
    files = group_2("/job", **{"memory_max": "max", "memory_swap.max": text})
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
            **files,
        },
    )
    facts = memory_facts(root)
    assert facts.swap_limit_bytes == limit
    assert facts.limit_bytes is None


def test_both_versions_side_by_side_each_controller_is_where_it_is_mounted(tmp_path: Path) -> None:
    mounts = (
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    )
    root = tree(
        tmp_path,
        {
            "proc/self/mountinfo": mounts,
            "proc/self/cgroup": "9:name=systemd:/\n4:memory:/api/f492\n0::/api\n",
            **group_1("/api/f492", 4 * GIB, GIB),
            "sys/fs/cgroup/unified/cgroup.controllers": "cpu\n",
            "sys/fs/cgroup/unified/api/cpu.max": "300000 100000\n",
        },
    )
    facts = memory_facts(root)
    assert (facts.cgroup_version, facts.limit_bytes) == (1, 4 * GIB)
    assert cpu_quota(root) == 3.0


def test_strict_overcommit_bounds_what_is_available(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/sys/vm/overcommit_memory": "2\n"})
    assert memory_facts(root).available_bytes == 3 * GIB
    tree(tmp_path, {"proc/sys/vm/overcommit_memory": "0\n"})
    assert memory_facts(root).available_bytes == 12 * GIB
    assert memory_facts(root).commit_left_bytes is None


def limits_table(space: str, data: str) -> str:
    return (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max data size             {data:<20} unlimited            bytes     \n"
        "Max open files            1024                 1048576              files     \n"
        f"Max address space         {space:<20} unlimited            bytes     \n"
        "Max realtime priority     0                    0                    \n"
    )


def test_limits_of_the_process_bound_what_is_available(tmp_path: Path) -> None:
    status = f"Name:\tpython\nVmSize:\t {GIB // 1024} kB\nVmData:\t {GIB // 2048} kB\n"
    files = {
        "proc/self/status": status,
        "proc/self/limits": limits_table(str(4 * GIB), "unlimited"),
    }
    root = tree(tmp_path, files)
    assert process_limits(root).address_space_bytes == 4 * GIB
    assert process_limits(root).open_files == 1024
    assert memory_facts(root).available_bytes == 3 * GIB
    tree(root, {"proc/self/limits": limits_table(str(4 * GIB), str(2 * GIB))})
    assert memory_facts(root).available_bytes == 2 * GIB - GIB // 2
    tree(root, {"proc/self/limits": limits_table("unlimited", "unlimited")})
    assert process_limits(root).allocatable_bytes is None
    assert memory_facts(root).available_bytes == 12 * GIB


@pytest.mark.parametrize(
    ("quota", "threads"),
    [("150000 100000", 1), ("50000 100000", 1), ("799999 100000", 7), ("max 100000", 8)],
)
def test_a_fractional_quota_is_rounded_down_to_threads(
    tmp_path: Path, quota: str, threads: int
) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu\n",
            "sys/fs/cgroup/cpu.max": f"{quota}\n",
        },
    )
    assert default_threads(root, frozenset(range(8))) == threads


def hybrid(root: Path) -> Path:
    """Two performance cores with two threads each (0-3), four efficiency cores (4-7)."""
    siblings = ["0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7"]
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return tree(
        root,
        {
            "sys/devices/cpu_core/cpus": "0-3\n",
            "sys/devices/system/cpu/online": "0-7\n",
            "proc/cpuinfo": "processor: 0\nmodel name\t: Example  CPU 9\nprocessor: 1\n",
            **{topology.format(cpu): f"{each}\n" for cpu, each in enumerate(siblings)},
        },
    )


def test_hybrid_machines_use_their_performance_cores(tmp_path: Path) -> None:
    facts = cpu_facts(hybrid(tmp_path), frozenset(range(8)))
    assert facts.model == "Example CPU 9"
    assert (facts.num_logical, facts.num_allowed, facts.num_performance) == (8, 8, 4)
    assert (facts.num_cores, facts.default_threads, facts.quota) == (2, 2, None)


def test_affinity_of_a_job_narrows_the_cores(tmp_path: Path) -> None:
    root = hybrid(tmp_path)
    assert cpu_facts(root, frozenset({1, 4, 5})).num_cores == 1
    only_slow = cpu_facts(root, frozenset({4, 5}))
    assert (only_slow.num_cores, only_slow.num_performance, only_slow.num_logical) == (2, 0, 8)
