"""Judgement of a machine from its facts: what is too slow, too tight or switched off, and how to change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparseflow.host.cpu import CpuFacts
from sparseflow.host.limits import ProcessLimits
from sparseflow.host.memory import MemoryFacts
from sparseflow.host.pages import PageFacts
from sparseflow.planning.check import Check, Verdict, conclude
from sparseflow.units import format_bytes

SLOW_ISA = "portable"
FEW_BYTES = 2 << 30
"""Less memory than this is too little for any model of a useful size."""
FREE_SHARE = 1 / 4
"""Of the memory that there is; below it, something else has most of it."""
SWAP_BYTES = 256 << 20
"""Systems put some idle pages into swap; more than this means that memory was short."""
FEW_FILES = 256
"""An engine opens one file a layer; models have up to a hundred."""
THP = "/sys/kernel/mm/transparent_hugepage/enabled"

_Problem = tuple[Verdict, str, str]


def check_software(python: str, versions: Mapping[str, str | None]) -> Check:
    """versions: of each package that the engine needs; None if it is not installed."""
    missing = [name for name, version in versions.items() if version is None]
    found = [f"Python {python}", *(f"{name} {v}" for name, v in versions.items() if v is not None)]
    problem: list[_Problem] = []
    if missing:
        names = ", ".join(missing)
        problem.append(("fail", f"not installed: {names}", f"pip install {' '.join(missing)}"))
    return conclude("software", ", ".join(found), *problem)


def check_isa(isas: Sequence[str], asked: str = "auto") -> Check:
    """isas: instruction sets that this build has and this CPU runs, best first."""
    used = isas[0] if asked == "auto" else asked
    others = [name for name in isas if name != used]
    found = f"{used} will be used" + (f"; also here: {', '.join(others)}" if others else "")
    if used not in isas:
        problem: _Problem = ("fail", "", f"this CPU does not run {used}; leave --isa out")
        return conclude("instruction set", f"{used}; here are {', '.join(isas)}", problem)
    if used == SLOW_ISA and len(isas) == 1:
        remedy = "a CPU with AVX2 computes several times faster; inside a virtual machine, pass the host's CPU through"
        return conclude("instruction set", found, ("warn", "this CPU has no AVX2", remedy))
    if used != isas[0]:
        return conclude(
            "instruction set", found, ("warn", "", f"leave --isa out: {isas[0]} is faster")
        )
    return conclude("instruction set", found)


def check_cpu(cpu: CpuFacts, threads: int | None = None) -> Check:
    """threads: what was asked for; None for the default."""
    used = threads or cpu.default_threads
    parts = [cpu.model or "unknown CPU", f"{cpu.num_logical} CPUs"]
    if cpu.num_allowed < cpu.num_logical:
        parts.append(f"this process may use {cpu.num_allowed}")
    if cpu.num_performance:
        parts.append(f"{cpu.num_performance} of them performance CPUs")
    parts.append(f"{cpu.num_cores} cores")
    if cpu.quota is not None:
        parts.append(f"quota {cpu.quota:g} CPUs")
    parts.append(f"{used} thread{'s' if used > 1 else ''} will compute")
    return conclude("cpu", ", ".join(parts), *_thread_problems(cpu, used))


def _thread_problems(cpu: CpuFacts, used: int) -> list[_Problem]:
    advice = f"give --threads {cpu.default_threads}, or leave it out"
    if cpu.quota is not None and cpu.quota < 1:
        return [("warn", "the quota stops even one thread", "give this container a whole CPU")]
    if cpu.quota is not None and used > cpu.quota:
        text = "more threads than the quota pays for: waiting ones are stopped with the others"
        return [("warn", text, advice)]
    if used > cpu.num_allowed:
        return [("warn", f"more threads than the {cpu.num_allowed} CPUs that there are", advice)]
    if used > cpu.num_cores:
        return [("warn", f"more threads than the {cpu.num_cores} cores", advice)]
    return []


def check_memory(memory: MemoryFacts, limits: ProcessLimits) -> Check:
    """Total, available and every limit on it."""
    parts = [
        f"{format_bytes(memory.total_bytes)}, {format_bytes(memory.available_bytes)} available"
    ]
    bounds = [memory.total_bytes]
    for nbytes, what in _memory_limits(memory, limits):
        parts.append(f"limit {format_bytes(nbytes)} ({what})")
        bounds.append(nbytes)
    least = max(FEW_BYTES, int(min(bounds) * FREE_SHARE))
    if memory.available_bytes >= least:
        return conclude("memory", ", ".join(parts))
    is_limited = min(bounds) < FEW_BYTES
    remedy = "raise the limit" if is_limited else "close other programs: the more is free, the more"
    remedy += "" if is_limited else " experts stay in memory"
    return conclude("memory", ", ".join(parts), ("warn", "little is available", remedy))


def _memory_limits(memory: MemoryFacts, limits: ProcessLimits) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    if memory.limit_bytes is not None and memory.limit_bytes < memory.total_bytes:
        version = f"cgroup v{memory.cgroup_version}"
        found.append((memory.limit_bytes, f"{version}: {memory.limit_source}"))
    if limits.address_space_bytes is not None:
        found.append((limits.address_space_bytes, "address space: ulimit -v"))
    if limits.data_bytes is not None:
        found.append((limits.data_bytes, "data: ulimit -d"))
    return found


def check_swap(memory: MemoryFacts) -> Check:
    """Swap in use says that memory was short; what is swapped out comes back one page at a time."""
    if not memory.swap_bytes:
        return conclude("swap", "none")
    used, total = format_bytes(memory.swap_used_bytes), format_bytes(memory.swap_bytes)
    found = f"{used} of {total} in use"
    if memory.swap_limit_bytes is not None:
        found += f", this process may use {format_bytes(memory.swap_limit_bytes)}"
    if memory.swap_used_bytes <= SWAP_BYTES:
        return conclude("swap", found)
    remedy = (
        "close other programs or give a lower --ram; after that: sudo swapoff -a && sudo swapon -a"
    )
    return conclude("swap", found, ("warn", "memory was short", remedy))


def check_limits(limits: ProcessLimits, memory: MemoryFacts) -> Check:
    """What `ulimit` and the kernel's overcommit policy refuse to this process."""
    problems: list[_Problem] = []
    for nbytes, letter in ((limits.address_space_bytes, "v"), (limits.data_bytes, "d")):
        if nbytes is not None:
            text = f"ulimit -{letter} {format_bytes(nbytes)}: an allocation beyond it fails"
            problems.append(("warn", text, f"ulimit -{letter} unlimited"))
    if limits.open_files is not None and limits.open_files < FEW_FILES:
        problems.append(("warn", "an engine opens one file a layer", "ulimit -n 1024"))
    if memory.commit_left_bytes is not None:
        text = f"strict overcommit: {format_bytes(memory.commit_left_bytes)} are still promised"
        problems.append(("warn", text, "sudo sysctl vm.overcommit_memory=0"))
    files = "any number of" if limits.open_files is None else limits.open_files
    return conclude("process limits", f"{files} open files", *problems)


def check_huge_pages(pages: PageFacts) -> Check:
    """Weights lie on huge pages where the kernel gives them."""
    problems: list[_Problem] = []
    if not pages.mode:
        text = "the kernel has no transparent huge pages; reading weights is slower without them"
        problems.append(("warn", text, ""))
    elif pages.mode == "never":
        remedy = f"echo madvise | sudo tee {THP}"
        problems.append(("warn", "reading weights is slower without them", remedy))
    if pages.reserved_bytes:
        text = (
            f"{format_bytes(pages.reserved_bytes)} are set aside by hand, which nothing here uses"
        )
        problems.append(("warn", text, "sudo sysctl vm.nr_hugepages=0"))
    size = format_bytes(pages.huge_page_bytes) if pages.huge_page_bytes else "size unknown"
    return conclude("huge pages", f"{pages.mode} ({size})" if pages.mode else "", *problems)


def check_wsl(version: int, memory: MemoryFacts) -> Check | None:
    """None outside of WSL, Linux inside Windows."""
    if version == 0:
        return None
    if version == 1:
        problem: _Problem = (
            "warn",
            "it translates every call: slow reads, none past the page cache",
            "wsl --set-version DISTRIBUTION 2",
        )
        return conclude("wsl", "WSL 1", problem)
    found = f"WSL 2: Windows gives it {format_bytes(memory.total_bytes)}, half of its memory if nothing else is said"
    remedy = "for more: memory=... below [wsl2] in %UserProfile%\\.wslconfig, then wsl --shutdown"
    return Check("wsl", "ok", found, remedy)
