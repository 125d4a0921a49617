"""The thread that watches memory: what it does to a real engine, and what its own failure does not do."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparseflow.config import EngineConfig, SamplingParams
from sparseflow.engine import watcher as watcher_module
from sparseflow.engine.engine import Engine
from sparseflow.engine.watcher import PressureWatcher
from sparseflow.experts.streaming import StreamingStore
from sparseflow.host.pressure import MemoryScope, PressureFacts

MIB = 1 << 20
PARAMS = SamplingParams(max_new_tokens=20, ignore_eos=True)
STREAMING = EngineConfig(store="streaming", cache_bytes=MIB, ctx=64, threads=1)


def facts(available: int) -> PressureFacts:
    return PressureFacts((MemoryScope("machine", 1 << 34, (1 << 34) - available, 0, 0, None),), 0)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def quiet(tiny_moe: Path) -> Iterator[Engine]:
    """An engine that nobody watches yet."""
    config = EngineConfig(
        store="streaming", cache_bytes=MIB, ctx=64, threads=1, watch_pressure=False
    )
    with Engine.open(tiny_moe, config) as engine:
        yield engine


def streaming(engine: Engine) -> StreamingStore:
    assert isinstance(engine.store, StreamingStore)
    return engine.store


def test_the_arena_shrinks_while_memory_is_short_and_comes_back(quiet: Engine) -> None:
    store = streaming(quiet)
    before = [token.id for token in quiet.generate("once", PARAMS)]
    available = 1 << 33
    watcher = PressureWatcher(store, lambda: facts(available))
    wait_for(lambda: store.arena.allowed == store.arena.full)
    available = MIB
    wait_for(lambda: store.arena.allowed < store.arena.full)
    assert [token.id for token in quiet.generate("once", PARAMS)] == before
    available = 1 << 33
    wait_for(lambda: store.arena.allowed == store.arena.full)
    watcher.close()
    assert [token.id for token in quiet.generate("once", PARAMS)] == before
    stats = quiet.stats().experts
    assert stats.shrinks >= 1
    assert stats.grows >= 1
    assert stats.least_bytes < stats.capacity_bytes
    assert not watcher.warnings


def test_a_watcher_that_fails_is_a_warning(quiet: Engine) -> None:
    def fail() -> PressureFacts:
        raise OSError(5, "Input/output error", "/proc/meminfo")

    watcher = PressureWatcher(streaming(quiet), fail)
    wait_for(lambda: bool(watcher.warnings))
    assert "memory pressure is not watched any more" in watcher.warnings[0]
    watcher.close()
    watcher.close()
    assert len(list(quiet.generate("once", PARAMS))) == 20


def watching_threads() -> int:
    return sum(thread.name == "memory-pressure" for thread in threading.enumerate())


def test_every_streaming_engine_is_watched_until_it_closes(tiny_moe: Path) -> None:
    assert watching_threads() == 0
    with Engine.open(tiny_moe, STREAMING):
        assert watching_threads() == 1
    assert watching_threads() == 0
    with Engine.open(tiny_moe, EngineConfig(ctx=64, threads=1)) as resident:
        assert watching_threads() == 0
        assert resident.stats().experts.shrinks == 0


def test_an_engine_that_nobody_closed_is_not_kept_alive(tiny_moe: Path) -> None:
    engine = Engine.open(tiny_moe, STREAMING)
    del engine
    gc.collect()
    wait_for(lambda: watching_threads() == 0)


def test_the_engine_reports_the_warning(tiny_moe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> float:
        raise ValueError("no such reading")

    monkeypatch.setattr(watcher_module, "decide", fail)
    with Engine.open(tiny_moe, STREAMING) as engine:
        wait_for(lambda: bool(engine.stats().warnings))
        assert "no such reading" in engine.stats().warnings[0]
        assert len(list(engine.generate("once", PARAMS))) == 20
