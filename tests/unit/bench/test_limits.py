"""Memory groups on recorded trees of both versions, and for real where this system allows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparseflow.bench import enter
from sparseflow.bench.limits import MemoryGroup
from sparseflow.errors import UnsupportedError

LIMIT = 64 << 20


def _version_1(root: Path) -> Path:
    group = root / "sys/fs/cgroup/memory/session"
    group.mkdir(parents=True)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("4:memory:/session\n0::/\n")
    return group


def _version_2(root: Path) -> Path:
    group = root / "sys/fs/cgroup/session"
    group.mkdir(parents=True)
    (root / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    for directory in (group, group.parent):
        (directory / "cgroup.subtree_control").write_text("memory\n")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/session\n")
    return group


def _remove_files(directory: Path) -> None:
    """A real control group's files vanish with it."""
    for file in directory.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("make", "name"), [(_version_1, "memory.limit_in_bytes"), (_version_2, "memory.max")]
)
def test_group_is_made_below_this_processs_own_with_the_limit_written(
    tmp_path: Path, make: object, name: str
) -> None:
    assert callable(make)
    parent = make(tmp_path)
    group = MemoryGroup(LIMIT, tmp_path)
    assert group.path.parent == parent
    assert (group.path / name).read_text() == str(LIMIT)
    _remove_files(group.path)
    group.remove()
    assert not group.path.exists()


def test_two_groups_have_two_names(tmp_path: Path) -> None:
    _version_1(tmp_path)
    assert MemoryGroup(LIMIT, tmp_path).path != MemoryGroup(LIMIT, tmp_path).path


def test_counters_of_both_versions_are_read(tmp_path: Path) -> None:
    _version_1(tmp_path / "a")
    first = MemoryGroup(LIMIT, tmp_path / "a")
    (first.path / "memory.stat").write_text("cache 7\nrss 5\n")
    (first.path / "memory.max_usage_in_bytes").write_text("12\n")
    (first.path / "memory.oom_control").write_text("oom_kill_disable 0\noom_kill 1\n")
    memory = first.memory()
    assert (memory.anonymous_bytes, memory.file_bytes, memory.peak_bytes, memory.oom_kills) == (
        5, 7, 12, 1,
    )  # fmt: skip
    _version_2(tmp_path / "b")
    second = MemoryGroup(LIMIT, tmp_path / "b")
    (second.path / "memory.stat").write_text("anon 3\nfile 4\n")
    (second.path / "memory.peak").write_text("9\n")
    (second.path / "memory.events").write_text("oom 2\noom_kill 2\n")
    memory = second.memory()
    assert (memory.anonymous_bytes, memory.file_bytes, memory.peak_bytes, memory.oom_kills) == (
        3, 4, 9, 2,
    )  # fmt: skip


def test_system_without_control_groups_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no memory limit"):
        MemoryGroup(LIMIT, tmp_path)


def test_group_that_takes_no_limit_is_removed_again(tmp_path: Path) -> None:
    parent = _version_1(tmp_path)
    original = Path.write_text

    def refuse(path: Path, text: str, encoding: str | None = None) -> int:
        if path.name == "memory.limit_in_bytes":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, text, encoding)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_text", refuse)
        with pytest.raises(UnsupportedError, match="Permission denied"):
            MemoryGroup(LIMIT, tmp_path)
    assert list(parent.iterdir()) == []


def test_entering_writes_the_id_and_becomes_the_program(tmp_path: Path) -> None:
    procs = tmp_path / "cgroup.procs"
    command = [sys.executable, enter.__file__, str(procs), sys.executable, "-c"]
    code = "import os; print(os.getpid())"
    done = subprocess.run([*command, code], capture_output=True, text=True, check=True)
    assert procs.read_text() == done.stdout.strip()


def test_real_group_bounds_and_ends_its_processes() -> None:
    try:
        group = MemoryGroup(LIMIT)
    except UnsupportedError as error:
        pytest.skip(str(error))
    with group:
        hog = "x = bytearray(1 << 28)"
        command = [sys.executable, enter.__file__, str(group.procs), sys.executable, "-c", hog]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == -9
        assert group.memory().oom_kills >= 1
        assert group.memory().peak_bytes <= LIMIT
        sleeper = "import time; print('in', flush=True); time.sleep(60)"
        with subprocess.Popen([*command[:-1], sleeper], stdout=subprocess.PIPE) as left_inside:
            assert left_inside.stdout is not None
            left_inside.stdout.readline()
            group.remove()
    assert left_inside.returncode == -9
    assert not group.path.exists()
