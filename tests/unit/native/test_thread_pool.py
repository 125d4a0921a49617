"""Threads: the same bits from any number, several callers, and the interpreter free while native code runs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from sparseflow.native import _ext

F32 = NDArray[np.float32]

ROWS, COLS, TOKENS = 512, 256, 400


def prepared_linear(runtime: _ext.Runtime) -> tuple[Callable[[], None], F32]:
    """A call of milliseconds of native work, and the array that it fills."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((ROWS, COLS), dtype=np.float32)
    matrix = _ext.Matrix("float32", ROWS, COLS, weights.view(np.uint8).reshape(-1))
    x = rng.standard_normal((TOKENS, COLS), dtype=np.float32)
    out = np.empty((TOKENS, ROWS), np.float32)
    return lambda: runtime.linear([matrix], x, [out]), out


def big_linear(runtime: _ext.Runtime) -> bytes:
    call, out = prepared_linear(runtime)
    call()
    return out.tobytes()


def test_any_number_of_threads_gives_the_same_bits() -> None:
    results = {big_linear(_ext.Runtime("auto", threads)) for threads in (1, 2, 3, 7)}
    assert len(results) == 1


def test_other_python_threads_run_during_a_native_call() -> None:
    """The switch interval is so long that a thread only gets the lock from one that gives it up."""
    call, _ = prepared_linear(_ext.Runtime("portable", 1))
    count = 0
    stop = False

    def run() -> None:
        nonlocal count
        while not stop:
            count += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    other = threading.Thread(target=run)
    other.start()
    sys.setswitchinterval(3600)
    try:
        before = count
        call()
        after = count
    finally:
        sys.setswitchinterval(interval)
        stop = True
        other.join()
    assert after > before


def test_callers_of_one_runtime_take_turns_and_get_their_own_results() -> None:
    runtime = _ext.Runtime("auto", 2)
    expected = big_linear(runtime)
    results: list[bytes] = []
    callers = [
        threading.Thread(target=lambda: results.append(big_linear(runtime))) for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [expected] * 4


def test_runtimes_can_be_made_and_dropped_in_any_number() -> None:
    before = threading.active_count()
    for _ in range(50):
        x = np.ones((3, 4), np.float32)
        _ext.Runtime("auto", 4).add(x, x.copy())
        assert (x == 2).all()
    assert threading.active_count() == before


@pytest.mark.parametrize("threads", [1, 3])
def test_scratch_memory_does_not_grow_when_calls_repeat(threads: int) -> None:
    runtime = _ext.Runtime("auto", threads)
    codes, scales = _ext.quantize_weights("int8-v1", np.ones((64, 2048), np.float32))
    matrix = _ext.Matrix("int8-v1", 64, 2048, codes, scales)
    x, out = np.ones((700, 2048), np.float32), np.empty((700, 64), np.float32)
    sizes = []
    for _ in range(6):
        runtime.linear([matrix], x, [out])
        sizes.append(runtime.scratch_bytes)
    assert len(set(sizes[2:])) == 1
