"""What people see on stderr: messages and progress bars. Text that a program may read goes to stdout by itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparseflow.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from rich.table import Table

    ProgressCallback = Callable[[str, int, int], None]


def say(message: str) -> None:
    """One line for the person at the terminal, on stderr."""
    print(message, file=sys.stderr, flush=True)


def show_table(table: Table, *, to_stderr: bool = False) -> None:
    """Prints a rich table; as wide as it needs to be where the output is not a terminal."""
    from rich.console import Console

    console = Console(stderr=to_stderr)
    if not console.is_terminal:
        console = Console(stderr=to_stderr, width=200)
    console.print(table)


def write_json(document: Mapping[str, Any], destination: str) -> None:
    """Writes a report as JSON: to stdout if `destination` is `-`, else to that file."""
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if destination == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        Path(destination).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{destination}: cannot write the report: {error.strerror}",
            path=destination,
            errno=error.errno,
        ) from error


class ProgressBars:
    """Progress bars on stderr, one per task name, drawn only on a terminal. Call it with (task, done, total)."""

    def __init__(self, bars: RichProgress | None) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, task: str, done: int, total: int) -> None:
        if self._bars is None:
            return
        if task not in self._tasks:
            self._tasks[task] = self._bars.add_task(task, total=max(total, 1))
        self._bars.update(self._tasks[task], completed=done, total=max(total, 1))

    def clear(self) -> None:
        """Takes all bars away, for example because text follows."""
        if self._bars is None:
            return
        for identifier in self._tasks.values():
            self._bars.remove_task(identifier)
        self._tasks.clear()
        self._bars.stop()
        self._bars = None


@contextmanager
def progress_bars(*, quiet: bool = False, in_bytes: bool = False) -> Iterator[ProgressBars]:
    """Bars that vanish when the block ends; none if `quiet` or if stderr is not a terminal. Counts are bytes if
    `in_bytes`.
    """
    if quiet or not sys.stderr.isatty():
        yield ProgressBars(None)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:>10}"),
        BarColumn(),
        DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield ProgressBars(bars)
