"""Verdicts from recorded facts of machines, and what the doctor finds in containers that are damaged."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from sparseflow.config import EngineConfig
from sparseflow.errors import BudgetError
from sparseflow.host.cpu import CpuFacts
from sparseflow.host.disk import DiskFacts
from sparseflow.host.limits import ProcessLimits
from sparseflow.host.memory import MemoryFacts
from sparseflow.host.pages import PageFacts
from sparseflow.planning import doctor
from sparseflow.planning.budget import settle
from sparseflow.planning.check import Check, conclude, worst
from sparseflow.planning.container_checks import (
    Fit,
    ReadTrial,
    check_direct_reads,
    check_disk,
    check_fit,
    check_integrity,
    check_read_speed,
    check_room,
)
from sparseflow.planning.machine_checks import (
    check_cpu,
    check_huge_pages,
    check_isa,
    check_limits,
    check_memory,
    check_software,
    check_swap,
    check_wsl,
)

GIB = 1 << 30
LAPTOP_CPU = CpuFacts("Example 9", 12, 12, 0, 6, None, 6)
LAPTOP_MEMORY = MemoryFacts(16 * GIB, 11 * GIB, None, 8 * GIB)
NO_LIMITS = ProcessLimits(None, None, 1024, None)
LAPTOP_DISK = DiskFacts("ext4", "/dev/nvme0n1p2", Path("/"), 500 * GIB, 120 * GIB)


def expect(check: Check, verdict: str, found: str = "", remedy: str = "") -> None:
    assert check.verdict == verdict, check
    assert found in check.found, check
    assert remedy in check.remedy, check
    assert verdict == "ok" or check.found


def changed(facts: Any, **changes: Any) -> Any:
    return dataclasses.replace(facts, **changes)


def test_the_worst_problem_is_the_verdict_and_every_remedy_is_named() -> None:
    check = conclude("x", "found", ("warn", "a", "do a"), ("fail", "b", "do b"))
    assert check == Check("x", "fail", "found; a; b", "do a; do b")
    assert worst(()) == "ok"


# --- the machine


def test_a_laptop_in_good_order_is_ok() -> None:
    checks = [
        check_software("3.12.1", {"numpy": "2.0"}),
        check_isa(["avx2_vnni", "avx2", "portable"]),
        check_cpu(LAPTOP_CPU),
        check_memory(LAPTOP_MEMORY, NO_LIMITS),
        check_swap(LAPTOP_MEMORY),
        check_limits(NO_LIMITS, LAPTOP_MEMORY),
        check_huge_pages(PageFacts("madvise", 2 << 20, 0)),
        check_disk(LAPTOP_DISK),
        check_room(LAPTOP_DISK),
    ]
    assert {check.verdict for check in checks} == {"ok"}
    assert not any(check.remedy for check in checks)
    assert check_wsl(0, LAPTOP_MEMORY) is None


def test_missing_package_fails() -> None:
    check = check_software("3.11.7", {"numpy": "2.0", "tokenizers": None})
    expect(check, "fail", "not installed: tokenizers", "pip install tokenizers")


def test_cpu_without_avx2_is_slow() -> None:
    expect(check_isa(["portable"]), "warn", "no AVX2")


def test_instruction_set_that_was_asked_for() -> None:
    expect(check_isa(["avx2", "portable"], "portable"), "warn", remedy="avx2 is faster")
    expect(check_isa(["avx2", "portable"], "avx512_vnni"), "fail", remedy="does not run")
    expect(check_isa(["avx2", "portable"], "avx2"), "ok", "avx2 will be used; also here: portable")


@pytest.mark.parametrize(
    ("changes", "threads", "verdict", "found"),
    [
        ({}, 6, "ok", "6 threads will compute"),
        ({}, 8, "warn", "more threads than the 6 cores"),
        ({}, 14, "warn", "more threads than the 12 CPUs"),
        ({"quota": 1.5, "default_threads": 1}, None, "ok", "quota 1.5 CPUs, 1 thread will compute"),
        ({"quota": 1.5, "default_threads": 1}, 2, "warn", "more threads than the quota pays for"),
        ({"quota": 0.5, "default_threads": 1}, None, "warn", "stops even one thread"),
        ({"num_allowed": 4, "num_cores": 2}, None, "warn", "this process may use 4"),
        (
            {"num_performance": 8, "num_cores": 4, "default_threads": 4},
            None,
            "ok",
            "8 of them perf",
        ),
    ],
)
def test_threads_beside_cores_and_quota(
    changes: dict[str, Any], threads: int | None, verdict: str, found: str
) -> None:
    expect(check_cpu(changed(LAPTOP_CPU, **changes), threads), verdict, found)


def test_little_memory_left_names_who_has_it() -> None:
    expect(
        check_memory(changed(LAPTOP_MEMORY, available_bytes=3 * GIB), NO_LIMITS),
        "warn",
        "16.00 GiB, 3.00 GiB available",
        "close other programs",
    )
    limited = changed(
        LAPTOP_MEMORY,
        available_bytes=GIB // 2,
        limit_bytes=GIB,
        cgroup_version=2,
        limit_source="/sys/fs/cgroup/job/memory.high",
    )
    found = "limit 1.00 GiB (cgroup v2: /sys/fs/cgroup/job/memory.high)"
    expect(check_memory(limited, NO_LIMITS), "warn", found, "raise the limit")


def test_a_limit_with_enough_below_it_is_told_and_ok() -> None:
    limited = changed(LAPTOP_MEMORY, limit_bytes=8 * GIB, available_bytes=7 * GIB)
    expect(check_memory(limited, NO_LIMITS), "ok", "limit 8.00 GiB")


def test_swap_in_use_warns() -> None:
    expect(check_swap(changed(LAPTOP_MEMORY, swap_used_bytes=10 << 20)), "ok", "10.00 MiB of")
    used = changed(LAPTOP_MEMORY, swap_used_bytes=2 * GIB, swap_limit_bytes=0)
    expect(check_swap(used), "warn", "this process may use 0 B", "lower --ram")
    expect(check_swap(changed(LAPTOP_MEMORY, swap_bytes=0)), "ok", "none")


def test_limits_of_the_process_warn() -> None:
    tight = ProcessLimits(4 * GIB, 2 * GIB, 64, GIB)
    check = check_limits(tight, changed(LAPTOP_MEMORY, commit_left_bytes=GIB))
    expect(check, "warn", "ulimit -v 4.00 GiB", "ulimit -d unlimited")
    expect(check, "warn", "strict overcommit: 1.00 GiB", "vm.overcommit_memory=0")
    expect(check, "warn", "one file a layer", "ulimit -n 1024")
    expect(check_memory(LAPTOP_MEMORY, tight), "ok", "limit 4.00 GiB (address space: ulimit -v)")


def test_huge_pages_switched_off_warn() -> None:
    expect(check_huge_pages(PageFacts("never", 2 << 20, 0)), "warn", remedy="echo madvise")
    expect(check_huge_pages(PageFacts("", None, 0)), "warn", "no transparent huge pages")
    reserved = PageFacts("always", 2 << 20, 4 * GIB)
    expect(check_huge_pages(reserved), "warn", "4.00 GiB are set aside", "vm.nr_hugepages=0")


def test_wsl_tells_its_memory_and_how_to_raise_it() -> None:
    second = check_wsl(2, changed(LAPTOP_MEMORY, total_bytes=8 * GIB))
    assert second is not None
    expect(second, "ok", "8.00 GiB", ".wslconfig")
    first = check_wsl(1, LAPTOP_MEMORY)
    assert first is not None
    expect(first, "warn", remedy="--set-version")


# --- a container's storage


@pytest.mark.parametrize(
    ("changes", "found", "remedy"),
    [
        ({"filesystem": "9p", "device": "C:\\", "mount_point": Path("/mnt/c")}, "Windows", "home"),
        ({"filesystem": "nfs4", "device": "server:/models"}, "network", "local disk"),
        ({"filesystem": "tmpfs", "device": "tmpfs"}, "in memory", "local disk"),
    ],
)
def test_storage_that_is_no_local_disk_warns(
    changes: dict[str, Any], found: str, remedy: str
) -> None:
    expect(check_disk(changed(LAPTOP_DISK, **changes)), "warn", found, remedy)


def test_refused_direct_reads_warn() -> None:
    expect(check_direct_reads(True), "ok")
    expect(check_direct_reads(False), "warn", "page cache", "ext4")


def test_slow_reads_warn_with_what_is_likely_the_reason() -> None:
    trial = ReadTrial(0.2e9, 3 << 20, 200 << 20, is_direct=True)
    expect(check_read_speed(trial, LAPTOP_DISK), "warn", "0.20 GB/s", "NVMe")
    spinning = changed(LAPTOP_DISK, is_rotational=True)
    expect(check_read_speed(trial, spinning), "warn", remedy="hard disk")
    windows = changed(LAPTOP_DISK, filesystem="drvfs")
    expect(check_read_speed(trial, windows), "warn", remedy="Linux' own files")
    fast = changed(trial, bytes_per_second=3.2e9)
    expect(check_read_speed(fast, spinning), "ok", "3.20 GB/s")
    expect(check_read_speed(changed(fast, is_direct=False), LAPTOP_DISK), "ok", "page cache may")
    small = changed(trial, total_bytes=5 << 20)
    expect(check_read_speed(small, LAPTOP_DISK), "ok", "too small a container")


def test_room_for_a_model() -> None:
    expect(check_room(changed(LAPTOP_DISK, free_bytes=3 * GIB)), "warn", "3.00 GiB", "free some")
    expect(check_room(changed(LAPTOP_DISK, options=frozenset({"ro"}))), "warn", "read-only")
    expect(check_room(changed(LAPTOP_DISK, free_bytes=0), needed_bytes=0), "ok")


def test_damage_names_the_first_findings_and_counts_the_rest() -> None:
    check = check_integrity([f"file {i}" for i in range(5)], "all", "prepare again")
    expect(check, "fail", "file 0; file 1; file 2; and 2 more", "prepare again")
    expect(check_integrity([], "all", "prepare again"), "ok", "all")
    assert check_integrity([], "all", "prepare again").remedy == ""


# --- memory for the model


def fit_of(container: Path, **options: Any) -> Fit:
    settled, budget = settle(container, EngineConfig(**options))
    return Fit(budget, settled.store, 70 << 20, 8 << 20, 1 << 20)


def test_a_budget_within_the_machine_is_ok(tiny_moe: Path) -> None:
    resident = fit_of(tiny_moe, ram_bytes=GIB)
    expect(check_fit(resident, LAPTOP_MEMORY), "ok", "all experts stay in memory")
    expect(check_fit(resident, LAPTOP_MEMORY), "ok", "works from --ram 70.00 MiB on")


def test_a_budget_beyond_what_is_available_warns_and_beyond_the_limit_fails(
    tiny_moe: Path,
) -> None:
    fit = fit_of(tiny_moe, ram_bytes=GIB)
    busy = changed(LAPTOP_MEMORY, available_bytes=10 << 20)
    expect(check_fit(fit, busy), "warn", "more than the 10.00 MiB available", "lower --ram")
    limited = changed(busy, limit_bytes=20 << 20)
    expect(check_fit(fit, limited), "fail", "would end it", "give --ram at most")


def test_a_cache_below_one_tokens_experts_warns(tiny_moe: Path) -> None:
    _, whole = settle(tiny_moe, EngineConfig(ram_bytes=GIB))
    fit = fit_of(tiny_moe, ram_bytes=GIB, cache_bytes=whole.arena_bytes // 2)
    assert fit.store == "streaming"
    fit = changed(fit, token_bytes=fit.budget.arena_bytes + 1)
    expect(check_fit(fit, LAPTOP_MEMORY), "warn", "every one is read every time", "give --ram")


def test_a_refused_budget_fails_with_its_sum_and_its_advice() -> None:
    message = "does not fit: a + b; lower --ctx to 512, or give --ram at least 12"
    refusal = BudgetError(message, needed_bytes=12 * GIB, available_bytes=10 * GIB)
    expect(check_fit(refusal, LAPTOP_MEMORY), "fail", "a + b", "lower --ctx to 512, or give --ram")
    expect(check_fit(refusal, LAPTOP_MEMORY), "fail", remedy="1.00 GiB more must be available")
    roomy = check_fit(refusal, changed(LAPTOP_MEMORY, available_bytes=13 * GIB))
    assert roomy.remedy == "lower --ctx to 512, or give --ram at least 12"
    limited = changed(LAPTOP_MEMORY, limit_bytes=11 * GIB)
    expect(check_fit(refusal, limited), "fail", remedy="raise the limit")
    assert check_fit(BudgetError("does not fit"), LAPTOP_MEMORY).found == "does not fit"


# --- examinations of this machine and of containers


def test_this_machine_has_a_line_for_every_topic() -> None:
    names = [check.name for check in doctor.examine_machine(EngineConfig())]
    topics = ["software", "instruction set", "self-test", "cpu", "memory", "swap"]
    assert names[:8] == [*topics, "process limits", "huge pages"]


def test_storage_of_a_directory_that_does_not_exist_yet_is_its_ancestors(tmp_path: Path) -> None:
    absent = tmp_path / "home" / "models"
    disk, room = doctor.examine_storage(absent)
    assert (disk.name, room.name) == ("disk", "free space")
    assert not absent.parent.exists()


def test_a_whole_container_has_no_failing_line(tiny_int4: Path) -> None:
    checks = doctor.examine_container(tiny_int4, EngineConfig(ram_bytes=GIB))
    names = ["container", "disk", "direct reads", "read speed", "memory budget", "free space"]
    assert [check.name for check in checks] == names
    assert worst(check.verdict for check in checks) != "fail"


@pytest.fixture
def container(tiny_int4: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_int4, tmp_path / "container")


def spoil(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("pattern", "offset", "found"),
    [
        ("tokenizer.json", 5, "tokenizer.json: its SHA-256"),
        ("dense.safetensors", -1, "dense.safetensors: its SHA-256"),
        ("**/*.sfi", 0, ".sfi"),
        ("**/*.sfi", -70, "hash"),
        ("manifest.json", 0, "manifest.json"),
    ],
)
def test_a_changed_byte_is_found(container: Path, pattern: str, offset: int, found: str) -> None:
    spoil(sorted(container.glob(pattern))[-1], offset)
    first, *rest = doctor.examine_container(container, EngineConfig(ram_bytes=GIB))
    expect(first, "fail", found, "prepare the model again")
    assert [check.name for check in rest] == ["disk"]


def test_a_cut_or_absent_file_is_found(container: Path) -> None:
    last = sorted(container.glob("**/*.sfi"))[-1]
    last.write_bytes(last.read_bytes()[:-4096])
    expect(doctor.examine_integrity(container), "fail", "the manifest says")
    last.unlink()
    expect(doctor.examine_integrity(container), "fail", "not there")


def test_a_container_that_does_not_fit_is_a_failing_line(container: Path) -> None:
    checks = doctor.examine_container(container, EngineConfig(ram_bytes=1 << 20))
    (check,) = [check for check in checks if check.name == "memory budget"]
    expect(check, "fail", "dense weights")
    assert checks[-1].name == "free space"
