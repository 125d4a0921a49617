"""Where the time of a command went: consecutive named laps, so that nothing is counted twice and nothing is missing."""

from __future__ import annotations

import time


class Stopwatch:
    """Runs from its construction; `lap` books the time since the previous lap under a name."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._seconds: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Ends a lap. The name carries its unit, as in `load_seconds`."""
        now = time.perf_counter()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> dict[str, float]:
        """The laps so far."""
        return dict(self._seconds)

    @property
    def total_seconds(self) -> float:
        """From the construction to the end of the last lap."""
        return self._last - self._start
