"""Every read engine: the same bytes, the same errors, and recovery from what system calls do."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sparseflow.errors import ConfigError, StorageError
from sparseflow.native import _ext

PAGE = 4096
read_range = _ext.testing.read_range


ENGINES: dict[str, Callable[[], _ext.ReadEngine]] = {
    "pread": lambda: _ext.create_read_engine("pread", 3),
    "pread, buffered": lambda: _ext.create_read_engine("pread", 1, direct_io=False),
    "pread, faults": lambda: _ext.testing.fault_engine(_ext.testing.FaultScript()),
    "io_uring": lambda: _ext.create_read_engine("io_uring", 3),
    "io_uring, buffered": lambda: _ext.create_read_engine("io_uring", 1, direct_io=False),
    "io_uring, faults": lambda: _ext.testing.fault_engine(
        _ext.testing.FaultScript(), engine="io_uring"
    ),
    "auto": lambda: _ext.create_read_engine("auto"),
    "memory": lambda: _ext.create_read_engine("memory"),
}


def refusal_of(name: str) -> str:
    """Why the system does not let an engine be made; empty: it does."""
    try:
        _ext.create_read_engine(name)
    except ConfigError as error:
        return str(error)
    return ""


SCRIPTED = [
    pytest.param(name, marks=pytest.mark.skipif(bool(refusal_of(name)), reason=refusal_of(name)))
    for name in ("pread", "io_uring")
]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> _ext.ReadEngine:
    if reason := refusal_of(request.param.partition(",")[0]):
        pytest.skip(reason)
    return ENGINES[request.param]()


@pytest.fixture(scope="module")
def content() -> bytes:
    return np.random.default_rng(1).bytes(20 * PAGE)


@pytest.fixture
def path(content: bytes, tmp_path: Path) -> str:
    (tmp_path / "data").write_bytes(content)
    return str(tmp_path / "data")


def test_all_known_engines_are_tested() -> None:
    assert set(_ext.read_engine_names()) <= set(ENGINES)


@pytest.mark.parametrize(("first", "count"), [(0, 20), (0, 1), (7, 4), (19, 1)])
def test_pages_are_read(
    engine: _ext.ReadEngine, path: str, content: bytes, first: int, count: int
) -> None:
    begin, nbytes = first * PAGE, count * PAGE
    assert read_range(engine, path, begin, nbytes) == content[begin : begin + nbytes]


def test_the_end_of_the_file_is_an_error(engine: _ext.ReadEngine, path: str) -> None:
    with pytest.raises(StorageError, match="cannot read") as caught:
        read_range(engine, path, 19 * PAGE, 2 * PAGE)
    assert (caught.value.errno, caught.value.offset) == (errno.ENODATA, 20 * PAGE)
    assert caught.value.path == path


def test_a_missing_file_is_an_error(engine: _ext.ReadEngine, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot open") as caught:
        read_range(engine, str(tmp_path / "absent"), 0, PAGE)
    assert caught.value.errno == errno.ENOENT


def test_a_directory_is_an_error(engine: _ext.ReadEngine, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="regular file"):
        read_range(engine, str(tmp_path), 0, PAGE)


def test_unknown_engines_are_refused_by_naming_the_known() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown 'uring'; known: auto, pread, (io_uring, )?memory"
    ):
        _ext.create_read_engine("uring")


@pytest.mark.parametrize("queue_depth", [0, -1, 257])
def test_impossible_queue_depths_are_refused(queue_depth: int) -> None:
    with pytest.raises(ConfigError, match="queue_depth"):
        _ext.create_read_engine("pread", queue_depth)


@pytest.mark.parametrize("name", SCRIPTED)
@pytest.mark.parametrize("direct_io", [True, False])
@pytest.mark.parametrize("nbytes", [100, PAGE, 2 * PAGE + 5, 5 * PAGE - 1])
def test_short_and_interrupted_reads_go_on(
    path: str, content: bytes, nbytes: int, direct_io: bool, name: str
) -> None:
    script = _ext.testing.FaultScript()
    engine = _ext.testing.fault_engine(script, 1, direct_io, name)
    script.fail(0, errno.EINTR)
    script.shorten(1, nbytes)
    script.fail(2, errno.EINTR)
    assert read_range(engine, path, PAGE, 8 * PAGE) == content[PAGE : 9 * PAGE]
    assert script.num_calls == 4


@pytest.mark.parametrize("name", SCRIPTED)
def test_an_error_after_a_short_read_carries_its_offset(
    path: str, content: bytes, name: str
) -> None:
    script = _ext.testing.FaultScript()
    engine = _ext.testing.fault_engine(script, engine=name)
    script.shorten(0, 2 * PAGE)
    script.fail(1, errno.EIO)
    with pytest.raises(StorageError) as caught:
        read_range(engine, path, PAGE, 8 * PAGE)
    assert (caught.value.errno, caught.value.offset) == (errno.EIO, 3 * PAGE)
    assert read_range(engine, path, PAGE, 8 * PAGE) == content[PAGE : 9 * PAGE]


def test_io_uring_that_is_refused_is_one_line_and_auto_reads_with_threads() -> None:
    """In a process that has no descriptor left for the rings."""
    program = """
import resource, sys
from sparseflow.errors import ConfigError
from sparseflow.native import _ext
used = max(int(fd) for fd in __import__("os").listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))
assert _ext.create_read_engine("auto").name == "pread"
try:
    _ext.create_read_engine("io_uring")
except ConfigError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"read engine io_uring: .*; choose pread\n", done.stdout)
