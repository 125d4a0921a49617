"""The control groups of this process, versions 1 and 2, as directories whose files tell limits and usage.

Every ancestor's limit binds. Inside a container the paths of /proc/self/cgroup may be the host's and not exist below
the mount; the mount's own top is then the group that can be seen.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")


def find_groups(controller: str, root: Path = ROOT) -> tuple[int, list[Path]]:
    """(version, directories from this process's group up to the mount's top); version 0 and none without cgroups.

    `root` stands for / so that recorded trees can be read.
    """
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0, []
    entries = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    for _, controllers, path in entries:
        if controller in controllers.split(","):
            top = mount / controller
            if not top.is_dir():
                top = mount / controllers
            return (1, _ancestors(top, path)) if top.is_dir() else (0, [])
    for number, controllers, path in entries:
        if number == "0" and not controllers and (mount / "cgroup.controllers").exists():
            return 2, _ancestors(mount, path)
    return 0, []


def read_number(path: Path) -> int | None:
    """The integer in a file; None if the file is absent or says `max`."""
    try:
        return int(path.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return None


def read_fields(path: Path) -> dict[str, int]:
    """Lines `name value`, such as memory.stat's; empty if the file is absent."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _ancestors(top: Path, path: str) -> list[Path]:
    group = top / path.strip("/")
    if not group.is_dir():
        return [top]
    between = [parent for parent in group.parents if parent.is_relative_to(top)]
    return [group, *between]
