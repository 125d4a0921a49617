"""Judgement of a container and of the storage below it: is it whole, is it fast, is there memory for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparseflow.config import StoreKind
from sparseflow.errors import BudgetError
from sparseflow.host.disk import DiskFacts
from sparseflow.host.memory import MemoryFacts
from sparseflow.host.wsl import is_windows_drive
from sparseflow.planning.budget import Budget
from sparseflow.planning.check import Check, Verdict, conclude
from sparseflow.units import format_bytes

SLOW_BYTES_PER_SECOND = 1e9
JUDGED_BYTES = 64 << 20
"""Fewer bytes read say nothing about a device."""
ROOM_BYTES = 20 << 30
"""A model of 35 billion weights with 4-bit experts, as prepare writes it."""
MAX_NAMED = 3

_Problem = tuple[Verdict, str, str]


@dataclass(frozen=True, slots=True)
class ReadTrial:
    """What reading whole experts at random places gave."""

    bytes_per_second: float
    read_bytes: int
    """Of one read: one expert."""
    total_bytes: int
    is_direct: bool
    """Whether the page cache had no part in it."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What a configuration means for a container on this machine."""

    budget: Budget
    store: StoreKind
    floor_bytes: int
    """The least `--ram` that this configuration works with."""
    experts_bytes: int
    """Of all experts."""
    token_bytes: int
    """Of the experts that one token asks for."""


def check_disk(disk: DiskFacts) -> Check:
    """Filesystem and device, and whether experts can be read from such a one at all well."""
    found = f"{disk.filesystem or 'unknown filesystem'} on {disk.device or 'an unknown device'}"
    found += f", mounted at {disk.mount_point}"
    move = "move the container to a local disk"
    if is_windows_drive(disk):
        text = "one of Windows' drives: every read goes through a protocol, several times slower"
        remedy = "move the container into Linux' own files, for example below your home directory"
        return conclude("disk", found, ("warn", text, remedy))
    if disk.is_network:
        return conclude("disk", found, ("warn", "every read goes over a network", move))
    if disk.is_memory:
        text = "lies in memory, which the experts' cache then lacks"
        return conclude("disk", found, ("warn", text, move))
    return conclude("disk", found)


def check_direct_reads(is_direct: bool) -> Check:
    """Whether reads go past the page cache."""
    if is_direct:
        return conclude("direct reads", "work")
    text = "refused here: experts are read through the page cache, which takes memory and copies every byte"
    remedy = "put the container on ext4, xfs or btrfs without compression or encryption by file"
    return conclude("direct reads", "", ("warn", text, remedy))


def check_read_speed(trial: ReadTrial, disk: DiskFacts) -> Check:
    """How fast whole experts come from this very container."""
    found = f"{trial.bytes_per_second / 1e9:.2f} GB/s, reads of {format_bytes(trial.read_bytes)}"
    if trial.total_bytes < JUDGED_BYTES:
        return conclude("read speed", f"{found}: too small a container to judge the disk by")
    if trial.bytes_per_second < SLOW_BYTES_PER_SECOND:
        text = "slow: a token waits for its experts"
        return conclude("read speed", found, ("warn", text, _speed_remedy(disk)))
    note = "" if trial.is_direct else ", but the page cache may have helped"
    return conclude("read speed", found + note)


def _speed_remedy(disk: DiskFacts) -> str:
    move = "move the container to a local NVMe SSD"
    if is_windows_drive(disk):
        return "move the container into Linux' own files"
    if not disk.is_network and disk.is_rotational:
        return f"{disk.device} says that it is a hard disk: {move}, or give a --ram that holds all experts"
    return f"{move}, or give a --ram that holds more experts; other programs may be reading now"


def check_room(disk: DiskFacts, needed_bytes: int = ROOM_BYTES) -> Check:
    """needed_bytes: what is still to be written there."""
    found = f"{format_bytes(disk.free_bytes)} of {format_bytes(disk.total_bytes)}"
    if "ro" in disk.options and needed_bytes:
        problem: _Problem = ("warn", "mounted read-only", "give a --models-dir that can be written")
        return conclude("free space", found, problem)
    if disk.free_bytes >= needed_bytes:
        return conclude("free space", found)
    text = f"a model of 35 billion weights takes {format_bytes(needed_bytes)}"
    return conclude("free space", found, ("warn", text, "free some, or give another --models-dir"))


def check_integrity(findings: Sequence[str], looked_at: str, remedy: str) -> Check:
    """findings: one line for everything that is damaged; looked_at: what was compared."""
    if not findings:
        return conclude("container", looked_at)
    named = list(findings[:MAX_NAMED])
    if len(findings) > MAX_NAMED:
        named.append(f"and {len(findings) - MAX_NAMED} more")
    return conclude("container", "", ("fail", "; ".join(named), remedy))


def check_fit(fit: Fit | BudgetError, memory: MemoryFacts) -> Check:
    """fit: what the budget says, or that it refuses."""
    if isinstance(fit, BudgetError):
        return _check_refusal(fit, memory)
    budget = fit.budget
    experts = "all experts stay in memory"
    if fit.store == "streaming":
        share = budget.arena_bytes / max(1, fit.experts_bytes)
        experts = f"{share:.0%} of the experts stay in memory"
    found = f"{experts}; {budget.describe()}; works from --ram {format_bytes(fit.floor_bytes)} on"
    return conclude("memory budget", found, *_fit_problems(fit, memory))


def _fit_problems(fit: Fit, memory: MemoryFacts) -> list[_Problem]:
    total, available = fit.budget.total_bytes, memory.available_bytes
    problems: list[_Problem] = []
    if total > (memory.limit_bytes or memory.total_bytes):
        text = "more than the limit of this process: the kernel would end it"
        problems.append(("fail", text, f"give --ram at most {format_bytes(available)}"))
    elif total > available:
        text = f"more than the {format_bytes(available)} available: it would swap, or be ended"
        problems.append(("warn", text, "give a lower --ram or close other programs"))
    if fit.store == "streaming" and fit.budget.arena_bytes < fit.token_bytes:
        needed = fit.budget.fixed_bytes + fit.token_bytes
        text = "less than the experts of one token: every one is read every time"
        problems.append(("warn", text, f"give --ram {format_bytes(needed)} or more if you can"))
    return problems


def _check_refusal(refusal: BudgetError, memory: MemoryFacts) -> Check:
    """The budget's messages end in what to do, behind their last semicolon."""
    found, _, advice = str(refusal).rpartition("; ")
    remedies = [advice] if found else []
    needed, limit = refusal.needed_bytes or 0, memory.limit_bytes
    if limit is not None and needed > limit:
        remedies.append("or raise the limit of this process's control group")
    elif needed > memory.available_bytes:
        lacking = format_bytes(needed - memory.available_bytes)
        remedies.append(f"for that, {lacking} more must be available: close other programs")
    return conclude("memory budget", "", ("fail", found or advice, "; ".join(remedies)))
