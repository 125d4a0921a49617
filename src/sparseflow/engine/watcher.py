"""A thread that reads how short memory is and sets the size of the expert arena; it sleeps otherwise."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

from sparseflow.engine.pressure import Arena, Past, decide, seconds_to_wait
from sparseflow.experts.streaming import StreamingStore
from sparseflow.host.pressure import PressureFacts, PressureReader


class PressureWatcher:
    """Watches from when it is made until `close`, or until nobody holds the store any more.

    What goes wrong ends the watch with a warning, never a run.
    """

    def __init__(
        self, store: StreamingStore, read: Callable[[], PressureFacts] | None = None
    ) -> None:
        """store: closed after the watcher. read: None: this process's memory and control groups."""
        self.warnings: list[str] = []
        self._store = weakref.ref(store)
        self._read = read or PressureReader().read
        self._past = Past()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-pressure", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Returns when the thread has ended. May be called twice."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while (seconds := self._look()) is not None and not self._stop.wait(seconds):
                pass
        except Exception as error:
            self.warnings.append(f"memory pressure is not watched any more: {error}")

    def _look(self) -> float | None:
        """One reading and what follows from it; returns the seconds until the next, None: there will be none."""
        store = self._store()
        if store is None:
            return None
        facts, use = self._read(), store.arena
        arena = Arena(use.full, use.allowed, use.touched, use.segment)
        target, self._past = decide(time.monotonic(), facts, arena, self._past)
        if target != arena.allowed:
            store.resize(target)
        return seconds_to_wait(facts)
