"""What is mounted where, from /proc/self/mountinfo."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")

_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo."""

    point: Path
    root: str
    """Which directory of the filesystem is mounted: `/`, or another for a bind mount or inside a container."""
    device_number: str
    """`MAJOR:MINOR`; of no block device where the major is 0."""
    filesystem: str
    """Type as the kernel names it: `ext4`, `xfs`, `9p`, `cgroup2`."""
    device: str
    """What was mounted: a device, a server's path, or a word."""
    options: frozenset[str]
    """Of the mount and of the filesystem: `ro`, `memory`, `aname=drvfs`."""


def read_mounts(root: Path = ROOT) -> list[Mount]:
    """All mounts that this process sees, in the kernel's order; empty where /proc is not there.

    `root` stands for / so that recorded trees can be read.
    """
    try:
        text = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [_parse(line) for line in text.splitlines() if " - " in line]


def _parse(line: str) -> Mount:
    left, _, right = line.partition(" - ")
    fields, (filesystem, device, *rest) = left.split(), right.split()
    options = [*fields[5].split(","), *(option for part in rest for option in part.split(","))]
    return Mount(
        point=Path(_unescape(fields[4])),
        root=_unescape(fields[3]),
        device_number=fields[2],
        filesystem=filesystem,
        device=_unescape(device),
        options=frozenset(options),
    )


def _unescape(text: str) -> str:
    """The kernel writes blanks and backslashes as three octal digits."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
