"""The kernel's read-ahead of the disk below a file: how much it reads beyond a page fault. Changed for a while only."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from sparseflow.errors import UnsupportedError

ROOT = Path("/")
SHIPPED_KIB = 128
"""What Linux sets unless somebody changes it."""


def read_ahead_file(path: Path, root: Path = ROOT) -> Path:
    """Where the kernel shows the read-ahead of the device that holds a file, in KiB.

    Raises UnsupportedError if the device is not a disk of this machine.
    """
    device = path.stat().st_dev
    block = (root / f"sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    for directory in (block, block.parent):  # a partition's queue is its disk's
        setting = directory / "queue" / "read_ahead_kb"
        if setting.is_file():
            return setting
    raise UnsupportedError(f"{path}: its device has no read-ahead setting")


def read_ahead_kib(path: Path, root: Path = ROOT) -> int:
    """The setting now. Raises UnsupportedError if there is none."""
    return int(read_ahead_file(path, root).read_text(encoding="ascii"))


@contextmanager
def read_ahead(path: Path, kib: int, root: Path = ROOT) -> Iterator[None]:
    """Sets it for the block, and back whatever happens, SIGTERM included.

    Raises UnsupportedError if it may not be set.
    """
    setting = read_ahead_file(path, root)
    before = setting.read_text(encoding="ascii").strip()
    try:
        setting.write_text(str(kib), encoding="ascii")
    except OSError as error:
        raise UnsupportedError(f"{setting}: cannot be set: {error.strerror}") from error
    try:
        with _sigterm_as_exit():
            yield
    finally:
        setting.write_text(before, encoding="ascii")


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """SIGTERM unwinds the stack instead of ending the process where it stands."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
