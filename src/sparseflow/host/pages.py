"""Whether this machine gives large blocks of memory on huge pages, which multiply faster than small ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sparseflow.host.cgroup import read_number
from sparseflow.host.mounts import ROOT

SETTINGS = Path("sys/kernel/mm/transparent_hugepage")
_CHOSEN = re.compile(r"\[(\w+)\]")


@dataclass(frozen=True, slots=True)
class PageFacts:
    """Of the kernel's transparent huge pages and of the pages set aside by hand, which this engine does not use."""

    mode: str
    """`always`, `madvise` (for memory that asks, as ours does) or `never`; empty if the kernel has none."""
    huge_page_bytes: int | None
    reserved_bytes: int
    """Taken from the machine's memory by vm.nr_hugepages, whether used or not."""


def page_facts(root: Path = ROOT) -> PageFacts:
    """Reads below `root`: /sys/kernel/mm/transparent_hugepage and /sys/kernel/mm/hugepages."""
    try:
        found = _CHOSEN.search((root / SETTINGS / "enabled").read_text(encoding="ascii"))
    except OSError:
        found = None
    reserved = 0
    for pool in (root / "sys/kernel/mm/hugepages").glob("hugepages-*kB"):
        kilobytes = int(pool.name.removeprefix("hugepages-").removesuffix("kB"))
        reserved += (read_number(pool / "nr_hugepages") or 0) * kilobytes * 1024
    size = read_number(root / SETTINGS / "hpage_pmd_size")
    return PageFacts(found[1] if found else "", size, reserved)
