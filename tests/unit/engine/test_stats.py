from __future__ import annotations

import pytest

from sparseflow.engine.stats import PhaseClock


def test_phases_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    clock = PhaseClock()
    for phase in ("idle", "prefill", "decode", "idle"):
        clock.enter(phase)
    times = clock.read()
    assert (times.load_seconds, times.prefill_seconds, times.decode_seconds) == (1.0, 3.0, 4.0)
    assert times.idle_seconds == 2.0 + 5.0
    assert times.total_seconds == 15.0
