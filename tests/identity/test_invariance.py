"""What may change time must change no bit: store, capacity, policy, threads, chunks, instruction set, direct I/O.

A run's fingerprint is its ids and the hash of the logits of every step.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparseflow.config import EngineConfig, SamplingParams
from sparseflow.engine.engine import Engine
from sparseflow.engine.stats import EngineStats
from sparseflow.experts.streaming import StreamingStore
from sparseflow.native import _ext

PARAMS = SamplingParams(
    max_new_tokens=64,
    temperature=0.9,
    top_k=60,
    top_p=0.95,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    seed=7,
    ignore_eos=True,
)
CONTAINERS = (
    "tiny_bf16",
    "tiny_moe",
    "tiny_int4",
    "tiny_int4_small",
    "mixtral_bf16",
    "mixtral_int8",
)
NUM_EXPERTS = {"qwen3_5_moe": 48, "mixtral": 22}  # 4 layers of 12, 2 of 11


@dataclass(frozen=True)
class Run:
    ids: list[int]
    hashes: list[str | None]
    stats: EngineStats


@pytest.fixture(scope="module", params=CONTAINERS)
def container(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.fixture(scope="module")
def prompt(tiny_checkpoint: Path) -> list[int]:
    with np.load(tiny_checkpoint / "logits.npz") as golden:
        ids: list[int] = golden["ids"][:67].tolist()
    return ids


@pytest.fixture(scope="module")
def baseline(container: Path, prompt: list[int]) -> Run:
    return run(container, prompt)


def run(container: Path, prompt: list[int], **options: Any) -> Run:
    config = EngineConfig(**{"ctx": 160, "threads": 1, **options})
    with Engine.open(container, config) as engine:
        tokens = list(engine.generate(prompt, PARAMS, hash_logits=True))
        stats = engine.stats()
    assert stats.active_leases == 0
    return Run([token.id for token in tokens], [token.logits_sha256 for token in tokens], stats)


def blob_bytes(container: Path) -> int:
    return _ext.SfiFile(str(container / "experts" / "layer_000.sfi")).blob_bytes


def assert_same(found: Run, baseline: Run) -> None:
    assert found.hashes == baseline.hashes
    assert found.ids == baseline.ids


def test_a_baseline_says_something(baseline: Run) -> None:
    assert len(set(baseline.ids)) > 20
    assert len(set(baseline.hashes)) == 64


def test_a_second_run_is_the_same(container: Path, prompt: list[int], baseline: Run) -> None:
    assert_same(run(container, prompt), baseline)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_change_no_bit(
    container: Path, prompt: list[int], baseline: Run, threads: int
) -> None:
    found = run(container, prompt, threads=threads)
    assert found.stats.threads == threads
    assert_same(found, baseline)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
def test_prefill_chunks_change_no_bit(
    container: Path, prompt: list[int], baseline: Run, chunk: int
) -> None:
    assert_same(run(container, prompt, prefill_chunk=chunk), baseline)


@pytest.mark.parametrize("isa", _ext.isa_names())
def test_instruction_sets_change_no_bit(
    container: Path, prompt: list[int], baseline: Run, isa: str
) -> None:
    found = run(container, prompt, isa=isa)
    assert found.stats.isa == isa
    assert_same(found, baseline)


@pytest.mark.parametrize("slots", [3, 28, 47])
@pytest.mark.parametrize("chunk", [1, 67])
def test_a_cache_that_shrinks_and_grows_at_any_time_changes_no_bit(
    container: Path, prompt: list[int], baseline: Run, slots: int, chunk: int
) -> None:
    size = slots * blob_bytes(container)
    config = EngineConfig(
        store="streaming",
        cache_bytes=size,
        ctx=160,
        threads=2,
        prefill_chunk=chunk,
        watch_pressure=False,
    )
    stop, random = threading.Event(), np.random.default_rng(slots)
    with Engine.open(container, config) as engine:
        store = engine.store
        assert isinstance(store, StreamingStore)

        def resize() -> None:
            while not stop.wait(0.0005):
                store.resize(int(random.integers(0, 2 * size)))

        thread = threading.Thread(target=resize)
        thread.start()
        try:
            tokens = list(engine.generate(prompt, PARAMS, hash_logits=True))
        finally:
            stop.set()
            thread.join()
        stats = engine.stats()
    assert stats.active_leases == 0
    assert stats.experts.shrinks > 3
    hashes = [token.logits_sha256 for token in tokens]
    assert_same(Run([token.id for token in tokens], hashes, stats), baseline)


@pytest.mark.parametrize("policy", ["scored", "lru"])
@pytest.mark.parametrize("slots", [2, 3, 12, 28, 40, 48])
def test_streaming_equals_resident(
    container: Path, prompt: list[int], baseline: Run, slots: int, policy: str
) -> None:
    num_experts = NUM_EXPERTS[baseline.stats.model_type]
    capacity = min(slots, num_experts) * blob_bytes(container)
    found = run(container, prompt, store="streaming", cache_bytes=capacity, policy=policy)
    assert_same(found, baseline)
    experts = found.stats.experts
    assert found.stats.store == "streaming"
    assert experts.bytes_read > 0
    assert (experts.evictions > 0) == (slots < num_experts)


@pytest.mark.parametrize("isa", _ext.isa_names())
def test_everything_at_once_changes_no_bit(
    container: Path, prompt: list[int], baseline: Run, isa: str
) -> None:
    found = run(
        container,
        prompt,
        store="streaming",
        cache_bytes=20 * blob_bytes(container),
        policy="lru",
        threads=3,
        prefill_chunk=7,
        isa=isa,
        direct_io=False,
        queue_depth=2,
    )
    assert_same(found, baseline)


def test_a_snapshot_continues_with_the_same_bits(container: Path, prompt: list[int]) -> None:
    with Engine.open(container, EngineConfig(ctx=160, threads=2)) as engine:
        whole = engine.logits(prompt)
        for length in (1, 3, 4, 32, 66):
            first = engine.new_sequence()
            first.append(prompt[:length])
            first.forward(length, "none")
            second = engine.new_sequence()
            second.restore(first.snapshot())
            second.append(prompt[length:])
            rest = second.forward(len(prompt) - length, "all")
            np.testing.assert_array_equal(rest, whole[length:])


@pytest.mark.parametrize("slots", [3, 28, 40])
@pytest.mark.parametrize("threads", [1, 3])
def test_lookahead_changes_no_bit(
    container: Path, prompt: list[int], baseline: Run, slots: int, threads: int
) -> None:
    found = run(
        container,
        prompt,
        store="streaming",
        cache_bytes=slots * blob_bytes(container),
        lookahead=1,
        threads=threads,
    )
    assert_same(found, baseline)
    experts = found.stats.experts
    assert experts.ahead_hits <= experts.ahead_reads
    if slots > 3 and experts.evictions:  # fewer slots are all leased, in more nothing is missing
        assert experts.ahead_reads > 0


@pytest.mark.parametrize("io", [name for name in _ext.read_engine_names() if name != "memory"])
def test_read_engines_change_no_bit(
    container: Path, prompt: list[int], baseline: Run, io: str
) -> None:
    capacity = 28 * blob_bytes(container)
    found = run(container, prompt, store="streaming", cache_bytes=capacity, io=io, queue_depth=3)
    assert_same(found, baseline)
    assert found.stats.experts.io == io
