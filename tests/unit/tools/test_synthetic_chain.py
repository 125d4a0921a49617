"""A model with a chain: greedy decoding walks it in every recipe, and no expert or block can be left out unnoticed."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import sparseflow
from make_synthetic_checkpoint import make, parse_options, plan_checkpoint
from sparseflow.checkpoint.header import read_header
from sparseflow.container.format import INDEX_OFFSET, SfiLayout
from sparseflow.container.manifest import expert_file_name, read_manifest
from sparseflow.container.recipes import RECIPES
from sparseflow.native import _ext
from synthetic.layout import PREFIX, Tensor
from synthetic.pool import Pool
from synthetic.routing import routing_facts

TINY = ["--tiny", "--chain", "--layers", "5", "--vocab", "256"]
CHECKED = 32


@pytest.fixture(scope="module", params=sorted(RECIPES))
def container(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("chain") / request.param
    return make(parse_options([*TINY, "--container", str(output), "--recipe", request.param]))


def chain(directory: Path) -> list[int]:
    ids: list[int] = json.loads((directory / "chain.json").read_text())["ids"]
    return ids


def logits(directory: Path) -> NDArray[np.float32]:
    with sparseflow.load(str(directory), threads=1, ctx=64) as engine:
        return engine.logits(chain(directory)[:CHECKED])


def test_greedy_decoding_walks_the_chain(container: Path) -> None:
    ids = chain(container)
    params = sparseflow.SamplingParams(temperature=0, max_new_tokens=64, ignore_eos=True)
    with sparseflow.load(str(container), threads=1) as engine:
        assert [token.id for token in engine.generate(ids[:20], params)] == ids[20:84]


def test_every_expert_that_a_token_uses_decides_its_link(container: Path) -> None:
    healthy = logits(container)
    following = np.array(chain(container)[1 : CHECKED + 1])
    assert (healthy.argmax(axis=1) == following).all()
    num_used = 0
    experts = read_manifest(container).experts
    layers = (0, 3, 4)  # a delta layer, an attention layer, the last
    for layer in layers:
        for expert in range(experts.num_experts):
            with silenced_expert(container, layer, expert):
                broken = logits(container)
            changed = np.flatnonzero((broken != healthy).any(axis=1))
            if changed.size:
                num_used += 1
                first = changed[0]
                assert broken[first].argmax() != following[first], (layer, expert)
    assert num_used > len(layers) * experts.num_experts / 2


@pytest.mark.parametrize(
    "name", ["linear_attn.out_proj", "self_attn.o_proj", "mlp.shared_expert.down_proj"]
)
def test_every_block_decides_every_link(container: Path, name: str) -> None:
    following = np.array(chain(container)[1 : CHECKED + 1])
    names = [full for full in read_manifest(container).tensors if name in full]
    assert names
    for full in names:
        with silenced_matrix(container, full):
            assert (logits(container).argmax(axis=1) != following).all(), full


def test_a_container_made_directly_is_that_of_the_written_checkpoint(
    container: Path, tmp_path: Path
) -> None:
    from sparseflow.prepare.prepare import prepare

    checkpoint = make(parse_options([*TINY, str(tmp_path / "checkpoint")]))
    recipe = read_manifest(container).recipe
    written = prepare(checkpoint, tmp_path / "container", recipe)
    files = sorted(path.relative_to(written) for path in written.rglob("*") if path.is_file())
    assert Path("chain.json") in files
    for file in files:
        assert (container / file).read_bytes() == (written / file).read_bytes(), file


def test_experts_are_the_same_fused_and_one_by_one() -> None:
    fused, unfused = (
        plan_checkpoint(parse_options([*TINY, *words, "unused"])).weights
        for words in ([], ["--unfused"])
    )
    assert fused is not None
    assert unfused is not None
    prefix = PREFIX + "layers.2.mlp.experts."
    gate_up = fused.read(Tensor(prefix + "gate_up_proj", (24, 256, 512)), 0, 24 * 256 * 512)
    down = fused.read(Tensor(prefix + "down_proj", (24, 512, 128)), 0, 24 * 512 * 128)
    gate, up = np.split(gate_up.reshape(24, 256, 512)[7], 2)
    parts = {"gate_proj": gate, "up_proj": up, "down_proj": down.reshape(24, 512, 128)[7]}
    for name, expected in parts.items():
        tensor = Tensor(f"{prefix}7.{name}.weight", expected.shape)
        assert np.array_equal(unfused.read(tensor, 0, expected.size), expected.reshape(-1))


def test_any_range_of_a_tensor_is_that_part_of_the_whole() -> None:
    plan = plan_checkpoint(parse_options([*TINY, "unused"]))
    weights = plan.weights
    assert weights is not None
    random = np.random.default_rng(0)
    for tensor in (tensor for shard in plan.shards for tensor in shard):
        count = tensor.nbytes // 2
        whole = weights.read(tensor, 0, count)
        begin, end = sorted(random.integers(0, count + 1, 2).tolist())
        assert np.array_equal(weights.read(tensor, begin, end - begin), whole[begin:end])


def test_every_expert_has_a_window_of_its_own() -> None:
    plan = plan_checkpoint(parse_options([*TINY, "unused"]))
    assert plan.weights is not None
    tensors = [tensor for shard in plan.shards for tensor in shard]
    windows = [plan.weights.windows(tensor) for tensor in tensors]
    offsets = [offset for made in windows if made is not None for offset in made.offsets]
    assert len(set(offsets)) == len(offsets) > 5 * 2 * 24
    assert all(offset % 256 == 0 for offset in offsets)


def test_a_pool_that_is_too_small_says_so() -> None:
    with pytest.raises(ValueError, match="make it larger"):
        Pool(0, 1 << 10, 64).offset(4)


def test_true_geometry_routes_like_the_real_model() -> None:
    plan = plan_checkpoint(parse_options(["--true-geometry", "--vocab", "1024", "unused"]))
    assert plan.weights is not None
    for fact in routing_facts(plan.weights, plan.config):
        assert fact.low <= fact.value <= fact.high, fact


def test_a_container_of_a_model_without_a_chain_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--tiny", "--container", "somewhere"])
    assert "--chain" in capsys.readouterr().err


@contextmanager
def overwritten(path: Path, parts: dict[int, bytes]) -> Iterator[None]:
    """Puts bytes at offsets of a file, and afterwards what was there."""
    before = {}
    with path.open("r+b") as file:
        for offset, data in parts.items():
            file.seek(offset)
            before[offset] = file.read(len(data))
            file.seek(offset)
            file.write(data)
    try:
        yield
    finally:
        with path.open("r+b") as file:
            for offset, data in before.items():
                file.seek(offset)
                file.write(data)


@contextmanager
def silenced_expert(container: Path, layer: int, expert: int) -> Iterator[None]:
    """The expert's down projection is zero: its scales, or where there are none, its weights."""
    experts = read_manifest(container).experts
    layout = SfiLayout(
        layer,
        experts.num_experts,
        experts.hidden_size,
        experts.moe_intermediate_size,
        experts.weight_format,
    )
    path = container / expert_file_name(layer)
    data = path.read_bytes()
    begin = layout.blob_offset(expert)
    blob = bytearray(data[begin : begin + layout.blob_bytes])
    codes, scales = layout.sections[4:]
    offset, nbytes = scales if scales[1] else codes
    blob[offset : offset + nbytes] = bytes(nbytes)
    hashes = list(struct.unpack_from(f"<{experts.num_experts}Q", data, INDEX_OFFSET))
    hashes[expert] = _ext.xxh3_64(bytes(blob))
    with overwritten(path, {begin: bytes(blob), 0: layout.build_header(hashes)}):
        yield


@contextmanager
def silenced_matrix(container: Path, name: str) -> Iterator[None]:
    """A matrix of dense.safetensors is zero, likewise."""
    path = container / "dense.safetensors"
    entries = read_header(path).tensors
    entry = entries.get(name + ".scales") or entries[name]
    with overwritten(path, {entry.offset: bytes(entry.nbytes)}):
        yield
