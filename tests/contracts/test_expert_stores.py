"""Both stores, at every capacity, policy, thread count and instruction set: one result, that of the readable twin."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sparseflow.config import EngineConfig
from sparseflow.errors import BudgetError, ConfigError, ContainerError, StorageError
from sparseflow.experts.create import create_store
from sparseflow.experts.resident import ResidentStore
from sparseflow.experts.store import ExpertStore
from sparseflow.experts.streaming import StreamingStore
from sparseflow.native import _ext, reference

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

NUM_LAYERS, NUM_EXPERTS, TOP_K = 2, 12, 3
HIDDEN, INTER, SHARED_INTER = 88, 40, 24
EIO = 5


class Weights:
    """Random weights of one container in one format, as the readable twin and as the file format take them."""

    def __init__(self, weight_format: str, seed: int = 0) -> None:
        self.format = weight_format
        random = np.random.default_rng(seed)
        self.experts = [
            [self._expert(random, INTER) for _ in range(NUM_EXPERTS)] for _ in range(NUM_LAYERS)
        ]
        self.shared = self._expert(random, SHARED_INTER)
        self.gate_logit = random.standard_normal((1, HIDDEN)).astype(np.float32)

    def _expert(self, random: np.random.Generator, inter: int) -> list[NDArray[np.uint16]]:
        shapes = ((inter, HIDDEN), (inter, HIDDEN), (HIDDEN, inter))
        return [
            ((random.standard_normal(shape).astype(np.float32) / 4).view(np.uint32) >> 16).astype(
                np.uint16
            )
            for shape in shapes
        ]

    def encode(self, bits: NDArray[np.uint16]) -> tuple[U8, F32 | None]:
        if self.format == "bf16-v1":
            return bits.reshape(-1).view(np.uint8), None
        return _ext.quantize_weights("int8-v1", bits)

    def matrix(self, bits: NDArray[np.uint16]) -> _ext.Matrix:
        codes, scales = self.encode(bits)
        return _ext.Matrix(self.format, *bits.shape, codes, scales)

    def shared_expert(self) -> _ext.SharedExpert:
        logit = _ext.Matrix("float32", 1, HIDDEN, self.gate_logit.view(np.uint8).reshape(-1))
        gate, up, down = (self.matrix(bits) for bits in self.shared)
        return _ext.SharedExpert(gate, up, down, logit)

    def linear(self, bits: NDArray[np.uint16], x: F32) -> F32:
        wide = reference.widen_bf16(bits)
        if self.format == "bf16-v1":
            return reference.float_linear(wide, x)
        codes, scales = reference.quantize_int8(wide)
        return reference.int8_linear(codes, scales, x)[:, : len(bits)]

    def mlp(self, expert: list[NDArray[np.uint16]], x: F32) -> F32:
        gate, up, down = expert
        hidden = reference.silu_multiply(self.linear(gate, x), self.linear(up, x))
        return self.linear(down, hidden)

    def write(self, directory: Path) -> list[Path]:
        directory.mkdir(parents=True)
        paths = []
        for layer, experts in enumerate(self.experts):
            paths.append(directory / f"layer_{layer:03d}.sfi")
            paths[-1].write_bytes(self._file(layer, experts))
        return paths

    def _file(self, layer: int, experts: list[list[NDArray[np.uint16]]]) -> bytes:
        parts = [[part for bits in expert for part in self.encode(bits)] for expert in experts]
        raws = [[b"" if part is None else part.tobytes() for part in expert] for expert in parts]
        offsets, end = [], 0
        for raw in raws[0]:
            offsets.append(end)
            end += (len(raw) + 63) // 64 * 64
        blob_bytes = (end + 4095) // 4096 * 4096
        blobs = [bytearray(blob_bytes) for _ in experts]
        for blob, expert in zip(blobs, raws, strict=True):
            for offset, raw in zip(offsets, expert, strict=True):
                blob[offset : offset + len(raw)] = raw
        code = {"bf16-v1": 1, "int8-v1": 2}[self.format]
        header = bytearray(4096)
        struct.pack_into(
            "<8s8I3Q", header, 0, b"SFIEXP\r\n", 1, 4096, layer, NUM_EXPERTS, HIDDEN, INTER, code, 0,
            blob_bytes, end, 4096 + len(blobs) * blob_bytes,
        )  # fmt: skip
        for i, (offset, raw) in enumerate(zip(offsets, raws[0], strict=True)):
            struct.pack_into("<2Q", header, 64 + 16 * i, offset, len(raw))
        hashes = [_ext.xxh3_64(bytes(blob)) for blob in blobs]
        struct.pack_into(f"<{len(hashes)}Q", header, 256, *hashes)
        struct.pack_into("<Q", header, 160, _ext.xxh3_64(bytes(header)))
        return bytes(header) + b"".join(bytes(blob) for blob in blobs)


class Call:
    """The arguments of one moe_forward and its expected result."""

    def __init__(self, weights: Weights, num_tokens: int, has_shared: bool, layer: int = 1) -> None:
        random = np.random.default_rng(100 + num_tokens)
        self.weights, self.layer, self.has_shared = weights, layer, has_shared
        self.x = random.standard_normal((num_tokens, HIDDEN)).astype(np.float32)
        chosen = [random.choice(NUM_EXPERTS, TOP_K, replace=False) for _ in range(num_tokens)]
        self.ids = np.sort(np.array(chosen, dtype=np.int32).reshape(num_tokens, TOP_K), axis=1)
        self.topk_weights = random.random((num_tokens, TOP_K)).astype(np.float32)
        self.residual = random.standard_normal((num_tokens, HIDDEN)).astype(np.float32)

    def expected(self) -> F32:
        out = np.zeros_like(self.x)
        for expert, weights in enumerate(self.weights.experts[self.layer]):
            tokens, places = np.nonzero(self.ids == expert)
            if tokens.size:
                y = self.weights.mlp(weights, self.x[tokens])
                share = self.topk_weights[tokens, places][:, None]
                out[tokens] = reference.fma(share, y, out[tokens])
        if self.has_shared:
            logit = reference.float_linear(self.weights.gate_logit, self.x)
            y = self.weights.mlp(self.weights.shared, self.x)
            out = reference.fma(reference.sigmoid(logit), y, out)
        return self.residual + out

    def run(self, store: ExpertStore) -> F32:
        residual = self.residual.copy()
        shared = self.weights.shared_expert() if self.has_shared else None
        store.compute(self.layer, self.x, self.ids, self.topk_weights, shared, residual)
        assert store.active_leases == 0
        return residual


@pytest.fixture(scope="module", params=["int8-v1", "bf16-v1"])
def weights(request: pytest.FixtureRequest) -> Weights:
    return Weights(request.param)


@pytest.fixture(scope="module")
def paths(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return weights.write(tmp_path_factory.mktemp("container") / "experts")


@pytest.fixture(scope="module")
def calls(weights: Weights) -> list[tuple[Call, F32]]:
    """A decode step, a short and a long prompt: the last does not fit into one batch."""
    made = [
        Call(weights, n, shared) for n, shared in ((1, True), (1, False), (5, True), (200, True))
    ]
    return [(call, call.expected()) for call in made]


def assert_right(store: ExpertStore, calls: list[tuple[Call, F32]]) -> None:
    for call, expected in calls:
        for _ in range(2):
            np.testing.assert_array_equal(call.run(store).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("isa", _ext.isa_names())
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_resident_equals_the_readable_twin(
    paths: list[Path], calls: list[tuple[Call, F32]], isa: str, threads: int
) -> None:
    with ResidentStore(_ext.Runtime(isa, threads), paths) as store:
        assert_right(store, calls)
        assert store.stats().misses == 0


@pytest.mark.parametrize("policy", _ext.policy_names())
@pytest.mark.parametrize("slots", [2, 3, 5, 7, 14, 17, 20, 23, 24])
def test_streaming_equals_the_readable_twin_at_every_capacity(
    paths: list[Path], calls: list[tuple[Call, F32]], slots: int, policy: str
) -> None:
    blob_bytes = _ext.SfiFile(str(paths[0])).blob_bytes
    with StreamingStore(
        _ext.Runtime("auto", 2),
        paths,
        capacity_bytes=slots * blob_bytes,
        num_experts_per_tok=TOP_K,
        policy=policy,
    ) as store:
        assert_right(store, calls)
        store.source.check_invariants()
        stats = store.stats()
        assert stats.resident_bytes <= stats.capacity_bytes
        assert (stats.evictions > 0) == (slots < NUM_LAYERS * NUM_EXPERTS)


@pytest.mark.parametrize("isa", _ext.isa_names())
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("engine", ["auto", *_ext.read_engine_names()])
def test_streaming_equals_the_readable_twin_with_every_engine_and_isa(
    paths: list[Path], calls: list[tuple[Call, F32]], engine: str, threads: int, isa: str
) -> None:
    blob_bytes = _ext.SfiFile(str(paths[0])).blob_bytes
    if engine == "io_uring":
        try:
            _ext.create_read_engine(engine)
        except ConfigError as error:
            pytest.skip(str(error))
    with StreamingStore(
        _ext.Runtime(isa, threads),
        paths,
        capacity_bytes=8 * blob_bytes,
        num_experts_per_tok=TOP_K,
        engine=engine,
    ) as store:
        assert_right(store, calls)


@contextmanager
def resized_wildly(store: StreamingStore, seed: int = 0) -> Iterator[None]:
    """Meanwhile another thread sets one capacity after another."""
    stop = threading.Event()
    random = np.random.default_rng(seed)
    full = store.arena.full

    def resize() -> None:
        while not stop.is_set():
            store.resize(int(random.integers(0, full + full // 4)))

    thread = threading.Thread(target=resize)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("policy", _ext.policy_names())
@pytest.mark.parametrize("slots", [2, 5, 14, 20, 23, 24])
def test_streaming_equals_the_readable_twin_while_its_capacity_changes(
    paths: list[Path], calls: list[tuple[Call, F32]], slots: int, policy: str
) -> None:
    with StreamingStore(
        _ext.Runtime("auto", 2),
        paths,
        capacity_bytes=slots * _ext.SfiFile(str(paths[0])).blob_bytes,
        num_experts_per_tok=TOP_K,
        policy=policy,
    ) as store:
        with resized_wildly(store):
            for _ in range(5):
                assert_right(store, calls)
        store.source.check_invariants()
        assert store.active_leases == 0
        assert store.resize(1 << 40) == store.arena.full == store.arena.held
        assert_right(store, calls)
        assert store.stats().shrinks > 0 or slots == 2


def run_until_it_fails(call: Call, store: ExpertStore) -> None:
    while True:
        call.run(store)


def test_failed_and_slow_reads_while_the_capacity_changes(
    weights: Weights, paths: list[Path]
) -> None:
    script = _ext.testing.FaultScript()
    call = Call(weights, 200, has_shared=True)
    expected = call.expected()
    with faulty_store(paths, script, slots=20) as store, resized_wildly(store, seed=1):
        for failing in range(8):
            script.clear()
            script.delay(failing, 0.002)
            script.fail(failing + 1, EIO)
            with pytest.raises(StorageError):
                run_until_it_fails(call, store)
            assert store.active_leases == 0
            script.clear()
            np.testing.assert_array_equal(call.run(store), expected)


def test_a_smaller_capacity_holds_less_and_comes_back(weights: Weights, paths: list[Path]) -> None:
    call = Call(weights, 200, has_shared=True)
    blob_bytes = _ext.SfiFile(str(paths[0])).blob_bytes
    with StreamingStore(
        _ext.Runtime(), paths, capacity_bytes=20 * blob_bytes, num_experts_per_tok=TOP_K
    ) as store:
        call.run(store)
        assert store.resize(7 * blob_bytes + 1) == 7 * blob_bytes
        stats = store.stats()
        assert (stats.resident_bytes, stats.least_bytes) == (7 * blob_bytes, 7 * blob_bytes)
        assert (stats.capacity_slots, stats.capacity_bytes) == (20, 20 * blob_bytes)
        assert store.arena.touched <= store.arena.held
        assert store.resize(0) == 2 * blob_bytes
        assert store.resize(20 * blob_bytes) == 20 * blob_bytes
        stats = store.stats()
        assert (stats.shrinks, stats.grows) == (2, 1)
        assert (stats.resident_bytes, stats.least_bytes) == (20 * blob_bytes, 2 * blob_bytes)


def faulty_store(
    paths: list[Path], script: _ext.testing.FaultScript, slots: int = 18, queue_depth: int = 2
) -> StreamingStore:
    return StreamingStore(
        _ext.Runtime("auto", 2),
        paths,
        capacity_bytes=slots * _ext.SfiFile(str(paths[0])).blob_bytes,
        num_experts_per_tok=TOP_K,
        engine=_ext.testing.fault_engine(script, queue_depth),
    )


@pytest.mark.parametrize("slots", [2, 8, 20, 24])
@pytest.mark.parametrize("num_tokens", [1, 200])
def test_a_failed_read_is_an_error_and_the_next_call_is_right(
    weights: Weights, paths: list[Path], slots: int, num_tokens: int
) -> None:
    call = Call(weights, num_tokens, has_shared=True)
    expected = call.expected()
    for failing in range(TOP_K):
        script = _ext.testing.FaultScript()
        with faulty_store(paths, script, slots) as store:
            script.fail(failing, EIO)
            with pytest.raises(StorageError, match=r"cannot read expert \d+ of layer 1") as caught:
                call.run(store)
            assert caught.value.errno == EIO
            assert caught.value.path == str(paths[1])
            assert store.active_leases == 0
            store.source.check_invariants()
            np.testing.assert_array_equal(call.run(store), expected)


def test_damaged_bytes_are_found_when_they_are_read(weights: Weights, paths: list[Path]) -> None:
    script = _ext.testing.FaultScript()
    call = Call(weights, 5, has_shared=True)
    with faulty_store(paths, script) as store:
        script.flip_bit(2)
        with pytest.raises(ContainerError, match=r"expert \d+ of layer 1: hash differs"):
            call.run(store)
        assert store.active_leases == 0
        np.testing.assert_array_equal(call.run(store), call.expected())


def test_short_interrupted_and_slow_reads_change_nothing(
    weights: Weights, paths: list[Path]
) -> None:
    script = _ext.testing.FaultScript()
    call = Call(weights, 5, has_shared=True)
    with faulty_store(paths, script, slots=5) as store:
        for i in range(0, 60, 4):
            script.shorten(i, 5000 + 17 * i)
            script.fail(i + 1, 4)  # EINTR
            script.delay(i + 2, 0.001)
        np.testing.assert_array_equal(call.run(store), call.expected())
        assert store.stats().read_wait_seconds > 0


def test_reads_are_direct_or_say_so(paths: list[Path]) -> None:
    script = _ext.testing.FaultScript()
    engine = _ext.testing.fault_engine(script, 2, direct_io=False)
    with ResidentStore(_ext.Runtime(), paths, engine=engine) as store:
        assert not store.stats().direct_io


def test_create_store_chooses_by_what_fits(paths: list[Path]) -> None:
    runtime = _ext.Runtime()
    blob_bytes = _ext.SfiFile(str(paths[0])).blob_bytes
    chosen = {
        EngineConfig(): "resident",
        EngineConfig(cache_bytes=1 << 30): "resident",
        EngineConfig(cache_bytes=5 * blob_bytes): "streaming",
        EngineConfig(store="streaming"): "streaming",
        EngineConfig(store="resident", cache_bytes=5 * blob_bytes): "resident",
    }
    for config, kind in chosen.items():
        with create_store(runtime, paths, config, TOP_K) as store:
            assert store.kind == kind


def test_loading_reports_every_layer(paths: list[Path]) -> None:
    seen: list[tuple[str, int, int]] = []
    ResidentStore(_ext.Runtime(), paths, progress=lambda *state: seen.append(state)).close()
    assert seen == [("experts", 0, 2), ("experts", 1, 2), ("experts", 2, 2)]


def test_what_cannot_fit_is_refused_with_both_counts(paths: list[Path]) -> None:
    with pytest.raises(BudgetError, match="2 experts of") as caught:
        StreamingStore(_ext.Runtime(), paths, capacity_bytes=10, num_experts_per_tok=TOP_K)
    assert caught.value.available_bytes == 10
    assert caught.value.needed_bytes == 2 * _ext.SfiFile(str(paths[0])).blob_bytes


def test_a_closed_store_keeps_its_last_stats_and_computes_no_more(
    weights: Weights, paths: list[Path]
) -> None:
    call = Call(weights, 1, has_shared=False)
    for store in (
        ResidentStore(_ext.Runtime(), paths),
        StreamingStore(_ext.Runtime(), paths, capacity_bytes=1 << 20, num_experts_per_tok=TOP_K),
    ):
        call.run(store)
        store.close()
        store.close()
        assert store.stats().reads > 0
        with pytest.raises(ConfigError, match="closed"):
            call.run(store)


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        ([[0, 1, 12]], "ascending and distinct"),
        ([[-1, 1, 2]], "ascending and distinct"),
        ([[1, 1, 2]], "ascending and distinct"),
        ([[2, 1, 3]], "ascending and distinct"),
    ],
)
def test_wrong_ids_are_refused(
    weights: Weights, paths: list[Path], ids: list[list[int]], match: str
) -> None:
    call = Call(weights, 1, has_shared=True)
    call.ids = np.array(ids, dtype=np.int32)
    with ResidentStore(_ext.Runtime(), paths) as store, pytest.raises(ConfigError, match=match):
        call.run(store)


def test_wrong_shapes_are_refused(weights: Weights, paths: list[Path]) -> None:
    call = Call(weights, 2, has_shared=True)
    runtime = _ext.Runtime()
    with ResidentStore(runtime, paths) as store:
        for name, value in {
            "x": call.x[:, :-1].copy(),
            "ids": call.ids[:1].copy(),
            "topk_weights": call.topk_weights[:, :1].copy(),
            "layer": 2,
        }.items():
            right = getattr(call, name)
            setattr(call, name, value)
            with pytest.raises(ConfigError, match=r"expected|layer: 2 of 2"):
                call.run(store)
            setattr(call, name, right)


def test_an_empty_chunk_is_nothing(weights: Weights, paths: list[Path]) -> None:
    call = Call(weights, 0, has_shared=True)
    with ResidentStore(_ext.Runtime(), paths) as store:
        assert call.run(store).shape == (0, HIDDEN)


def test_heat_is_exported_and_imported(weights: Weights, paths: list[Path]) -> None:
    call = Call(weights, 5, has_shared=False)

    def open_store() -> StreamingStore:
        return StreamingStore(
            _ext.Runtime(), paths, capacity_bytes=1 << 20, num_experts_per_tok=TOP_K
        )

    with open_store() as store, open_store() as other:
        call.run(store)
        heat = store.export_heat()
        assert heat.shape == (NUM_LAYERS, NUM_EXPERTS, 2)
        assert set(np.nonzero(heat[call.layer, :, 0])[0]) == set(call.ids.flat)
        other.import_heat(heat)
        ratio = other.export_heat()[heat > 0] / heat[heat > 0]
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)  # the same ranking, trusted less
        assert 0 < ratio[0] < 1
        with pytest.raises(ConfigError, match="expected shape"):
            other.import_heat(heat[:1])
