"""The control groups of this process, versions 1 and 2, as directories whose files tell limits and usage.

Every ancestor's limit binds. Inside a container the paths of /proc/self/cgroup may be the host's: the part that the
mount begins with is taken off, and if the rest does not exist below the mount, the mount's own top is the group.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from sparseflow.host.mounts import ROOT, Mount, read_mounts

USUAL_MOUNT = Path("sys/fs/cgroup")


def find_groups(controller: str, root: Path = ROOT) -> tuple[int, list[Path]]:
    """(version, directories from this process's group up to the mount's top); version 0 and none without cgroups.

    `root` stands for / so that recorded trees can be read.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0, []
    entries = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    for _, controllers, path in entries:
        if controller in controllers.split(","):
            groups = _groups(_version_1_mounts(controller, controllers, root), path)
            return (1, groups) if groups else (0, [])
    for number, controllers, path in entries:
        if number == "0" and not controllers:
            groups = _groups(_version_2_mounts(root), path)
            return (2, groups) if groups else (0, [])
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


def _version_1_mounts(controller: str, controllers: str, root: Path) -> list[tuple[Path, str]]:
    """(directory, the group that it shows) of a controller's mounts; where they usually are, if unknown."""
    mounts = [
        mount
        for mount in read_mounts(root)
        if mount.filesystem == "cgroup" and controller in mount.options
    ]
    usual = [(root / USUAL_MOUNT / name, "/") for name in (controller, controllers)]
    return [_place(mount, root) for mount in mounts] or usual


def _version_2_mounts(root: Path) -> list[tuple[Path, str]]:
    mounts = [mount for mount in read_mounts(root) if mount.filesystem == "cgroup2"]
    usual = [root / USUAL_MOUNT, root / USUAL_MOUNT / "unified"]
    found = [(top, "/") for top in usual if (top / "cgroup.controllers").exists()]
    return [_place(mount, root) for mount in mounts] or found


def _place(mount: Mount, root: Path) -> tuple[Path, str]:
    return root / mount.point.relative_to("/"), mount.root


def _groups(mounts: list[tuple[Path, str]], path: str) -> list[Path]:
    """A process's group at `path` of the hierarchy and its ancestors, as far as the first usable mount shows them."""
    for top, shown in mounts:
        if top.is_dir():
            group = top / _below(shown, path)
            if not group.is_dir():
                return [top]
            return [group, *(parent for parent in group.parents if parent.is_relative_to(top))]
    return []


def _below(shown: str, path: str) -> str:
    """`path` seen from a mount that shows the group `shown`; its top if the path leads out of it."""
    parts = PurePosixPath(path)
    if ".." in parts.parts:
        return ""
    if shown != "/" and parts.is_relative_to(shown):
        return str(parts.relative_to(shown))
    return path.strip("/")
