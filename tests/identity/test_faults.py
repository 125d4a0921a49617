"""Whatever interrupts a generation, no lease is left and the next request gives the same bits.

Reads that fail or come short, Ctrl-C in prefill and in decode, a generation that is closed, logits that overflow.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparseflow.config import EngineConfig, SamplingParams
from sparseflow.engine.engine import Engine
from sparseflow.engine.loading import load
from sparseflow.engine.stats import PhaseClock
from sparseflow.errors import ConfigError, ContainerError, StorageError
from sparseflow.native import _ext
from sparseflow.prepare.prepare import prepare

PARAMS = SamplingParams(max_new_tokens=24, temperature=0.7, seed=3, ignore_eos=True)
PROMPT = list(range(10, 60))
Fingerprint = list[tuple[int, str | None]]


def fingerprint(engine: Engine) -> Fingerprint:
    return [(t.id, t.logits_sha256) for t in engine.generate(PROMPT, PARAMS, hash_logits=True)]


@pytest.fixture(scope="module")
def expected(tiny_moe: Path) -> Fingerprint:
    with Engine.open(tiny_moe, EngineConfig(ctx=96, threads=1)) as engine:
        return fingerprint(engine)


@pytest.fixture
def engine(tiny_moe: Path) -> Iterator[Engine]:
    """Streaming, with room for less than half of the experts, a prompt in four chunks."""
    blob_bytes = _ext.SfiFile(str(tiny_moe / "experts" / "layer_000.sfi")).blob_bytes
    config = EngineConfig(
        ctx=96, threads=2, store="streaming", cache_bytes=20 * blob_bytes, prefill_chunk=16
    )
    with Engine.open(tiny_moe, config) as opened:
        yield opened


def assert_unharmed(engine: Engine, expected: Fingerprint) -> None:
    assert engine.stats().active_leases == 0
    assert fingerprint(engine) == expected
    assert engine.stats().active_leases == 0


def interrupt_at(engine: Engine, call: int) -> None:
    """Makes Ctrl-C arrive while the engine's expert store computes for the call-th time from now (0: the next)."""
    compute, calls = engine._loaded.store.compute, 0

    def interrupted(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call + 1:
            signal.raise_signal(signal.SIGINT)
        compute(*arguments)

    engine._loaded.store.compute = interrupted  # type: ignore[method-assign]


@pytest.mark.parametrize("call", [0, 5, 14])
def test_ctrl_c_in_prefill_leaves_no_lease(
    engine: Engine, expected: Fingerprint, call: int
) -> None:
    interrupt_at(engine, call)
    with pytest.raises(KeyboardInterrupt):
        next(engine.generate(PROMPT, PARAMS))
    assert_unharmed(engine, expected)


@pytest.mark.parametrize("call", [16, 18, 31])
def test_ctrl_c_in_decode_leaves_no_lease(engine: Engine, expected: Fingerprint, call: int) -> None:
    interrupt_at(engine, call)
    tokens = engine.generate(PROMPT, PARAMS)
    next(tokens)
    with pytest.raises(KeyboardInterrupt):
        list(tokens)
    assert_unharmed(engine, expected)


def generate_until_ctrl_c(engine: Engine, seconds: float) -> None:
    """Ctrl-C arrives after that many seconds of generating, wherever it then is."""
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:
        fingerprint(engine)


@pytest.mark.parametrize("delay_ms", [1, 2, 3, 5, 8, 13, 21, 34])
def test_ctrl_c_at_any_moment_leaves_no_lease(
    engine: Engine, expected: Fingerprint, delay_ms: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        generate_until_ctrl_c(engine, delay_ms / 1000)
    assert_unharmed(engine, expected)


@pytest.mark.parametrize("num_tokens", [1, 2, 23])
def test_a_generation_that_is_closed_leaves_no_lease(
    engine: Engine, expected: Fingerprint, num_tokens: int
) -> None:
    tokens = engine.generate(PROMPT, PARAMS)
    for _ in range(num_tokens):
        next(tokens)
    tokens.close()
    assert_unharmed(engine, expected)


def test_a_generation_that_is_forgotten_leaves_no_lease(
    engine: Engine, expected: Fingerprint
) -> None:
    tokens = engine.generate(PROMPT, PARAMS)
    next(tokens)
    del tokens
    assert_unharmed(engine, expected)


def fault_engine_of(container: Path, script: _ext.testing.FaultScript) -> Engine:
    """A streaming engine whose read system calls follow the script; it holds less than half of the experts."""
    blob_bytes = _ext.SfiFile(str(container / "experts" / "layer_000.sfi")).blob_bytes
    config = EngineConfig(
        ctx=96, threads=2, store="streaming", cache_bytes=20 * blob_bytes, prefill_chunk=16
    )
    clock = PhaseClock()
    return Engine(load(container, config, None, _ext.testing.fault_engine(script)), clock)


@pytest.mark.parametrize("call", [0, 7, 30])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENODEV])
def test_a_read_error_in_prefill_leaves_no_lease(
    tiny_moe: Path, expected: Fingerprint, call: int, code: int
) -> None:
    script = _ext.testing.FaultScript()
    with fault_engine_of(tiny_moe, script) as engine:
        script.fail(call, code)
        with pytest.raises(StorageError) as caught:
            next(engine.generate(PROMPT, PARAMS))
        assert caught.value.errno == code
        assert "layer_" in (caught.value.path or "")
        assert engine.stats().experts.failed_reads == 1
        assert_unharmed(engine, expected)


def test_a_read_error_in_decode_leaves_no_lease(tiny_moe: Path, expected: Fingerprint) -> None:
    script = _ext.testing.FaultScript()
    with fault_engine_of(tiny_moe, script) as engine:
        tokens = engine.generate(PROMPT, PARAMS)
        next(tokens)
        script.fail(2, errno.EIO)
        with pytest.raises(StorageError):
            list(tokens)
        assert_unharmed(engine, expected)


def test_a_flipped_bit_is_never_computed_with(tiny_moe: Path, expected: Fingerprint) -> None:
    script = _ext.testing.FaultScript()
    with fault_engine_of(tiny_moe, script) as engine:
        script.flip_bit(5)
        with pytest.raises(ContainerError):
            next(engine.generate(PROMPT, PARAMS))
        assert_unharmed(engine, expected)


@pytest.mark.parametrize("nbytes", [1, 512, 5000])
def test_short_reads_change_no_bit(tiny_moe: Path, expected: Fingerprint, nbytes: int) -> None:
    script = _ext.testing.FaultScript()
    with fault_engine_of(tiny_moe, script) as engine:
        for call in range(0, 60, 2):
            script.shorten(call, nbytes)
        assert_unharmed(engine, expected)
        assert engine.stats().experts.failed_reads == 0


def test_slow_reads_change_no_bit(tiny_moe: Path, expected: Fingerprint) -> None:
    script = _ext.testing.FaultScript()
    with fault_engine_of(tiny_moe, script) as engine:
        for call in range(0, 60, 3):
            script.delay(call, 0.002)
        assert_unharmed(engine, expected)


def test_ctrl_c_while_reads_are_under_way_leaves_no_lease(
    tiny_moe: Path, expected: Fingerprint
) -> None:
    script = _ext.testing.FaultScript()
    with fault_engine_of(tiny_moe, script) as engine:
        script.always(seconds=0.02)
        with pytest.raises(KeyboardInterrupt):
            generate_until_ctrl_c(engine, 0.05)
        script.clear()
        assert_unharmed(engine, expected)


def test_a_generation_ends_when_its_engine_is_closed(engine: Engine) -> None:
    tokens = engine.generate(PROMPT, PARAMS)
    next(tokens)
    engine.close()
    with pytest.raises(ConfigError, match="closed"):
        next(tokens)


def test_a_logit_that_is_not_finite_is_an_error(tiny_checkpoint: Path, tmp_path: Path) -> None:
    checkpoint = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    fill_tensor(checkpoint / "model.safetensors", "lm_head.weight", 0x7F7F)  # the largest bfloat16
    container = prepare(checkpoint, tmp_path / "container", "bf16")
    with Engine.open(container, EngineConfig(ctx=96, threads=1)) as engine:
        with pytest.raises(ContainerError, match="not finite"):
            next(engine.generate(PROMPT, PARAMS))
        with pytest.raises(ContainerError, match="not finite"):
            engine.logits(PROMPT)
        assert engine.stats().active_leases == 0


def fill_tensor(path: Path, name: str, bits: int) -> None:
    content = bytearray(path.read_bytes())
    header_bytes = int.from_bytes(content[:8], "little")
    begin, end = json.loads(content[8 : 8 + header_bytes])[name]["data_offsets"]
    values = np.full((end - begin) // 2, bits, dtype="<u2").tobytes()
    content[8 + header_bytes + begin : 8 + header_bytes + end] = values
    path.write_bytes(content)
