"""The quality benchmark on the golden model: what it changes, what it leaves, what it calls a failure."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf", reason="needs the gguf package: pip install gguf")

import quality
from quality_variants import STUDY, VARIANTS, Variant, costs
from quality_weights import Change, alter, pass_through, round_trip, with_outliers
from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.tensor_classes import TensorClass, TensorRow, all_rows
from sparseflow.container.recipes import get_recipe
from sparseflow.evaluation.divergence import Divergence
from synthetic.pool import widen

IDS = [list(range(5, 45)), list(range(50, 80))]


def rows_of(checkpoint: Path) -> list[TensorRow]:
    with Checkpoint.open(checkpoint) as opened:
        return list(all_rows(opened.family))


def changed(change: Change, row: TensorRow, cols: int) -> np.ndarray:
    shape = (3, cols) if len(row.shape) > 1 else (cols,)
    before = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return change(row, before.copy()) != before


def test_an_unchanged_copy_diverges_by_nothing(tiny_checkpoint: Path, tmp_path: Path) -> None:
    copy = alter(tiny_checkpoint, tmp_path / "copy", lambda _row, values: values)
    (tmp_path / "scratch").mkdir()
    plain, again = (
        list(
            quality.run(
                quality.Case("tiny", path, IDS, is_text=True),
                Variant("bf16", "bf16"),
                1,
                tmp_path / "scratch",
                None,
            )
        )
        for path in (tiny_checkpoint, copy)
    )
    for left, right in zip(plain, again, strict=True):
        np.testing.assert_array_equal(left, right)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_tied_head_becomes_a_tensor_of_its_own(tiny_checkpoint: Path, tmp_path: Path) -> None:
    tied = shutil.copytree(tiny_checkpoint, tmp_path / "tied")
    config = json.loads((tied / "config.json").read_text()) | {"tie_word_embeddings": True}
    (tied / "config.json").write_text(json.dumps(config))
    raw = (tied / "model.safetensors").read_bytes()
    (tied / "model.safetensors").write_bytes(raw.replace(b"lm_head.weight", b"mtp.h1d.weight"))

    def halve_head(row: TensorRow, values: np.ndarray) -> np.ndarray:
        return values / 2 if row.tensor_class == TensorClass.HEAD else values

    with Checkpoint.open(alter(tied, tmp_path / "own", halve_head)) as opened:
        assert not opened.config["tie_word_embeddings"]
        bits = {}
        for name in ("lm_head.weight", "embed_tokens.weight"):
            tensor = opened.find(name)
            assert tensor is not None
            bits[name] = np.empty(tensor.nbytes // 2, np.uint16)
            opened.read_into(tensor.file, tensor.offset, bits[name].view(np.uint8).data)
    np.testing.assert_array_equal(
        2 * widen(bits["lm_head.weight"]), widen(bits["embed_tokens.weight"])
    )


def test_only_what_the_recipe_quantizes_goes_through_the_peer_s_format(
    tiny_checkpoint: Path,
) -> None:
    recipe = get_recipe("int4")
    types = next(variant.types for variant in VARIANTS if variant.name == "Q4_0")
    change = pass_through(recipe, types)
    untouched = {
        row.tensor_class for row in rows_of(tiny_checkpoint) if not changed(change, row, 84).any()
    }
    assert {TensorClass.ROUTER, TensorClass.NORM, TensorClass.EMBEDDING} <= untouched
    for row in rows_of(tiny_checkpoint):
        quantized = recipe.format_of(row) in types
        assert changed(change, row, 84).any() == quantized, row.name


@pytest.mark.parametrize(("name", "steps"), [("Q8_0", 127), ("Q4_0", 8)])
def test_a_round_trip_errs_by_half_a_step_of_its_block(name: str, steps: int) -> None:
    values = np.random.default_rng(0).normal(size=(7, 84)).astype(np.float32)
    error = np.abs(round_trip(values, name) - values)
    blocks = [slice(0, 32), slice(32, 64), slice(64, 84)]
    for block in blocks:
        step = np.abs(values[:, block]).max(axis=1) / steps
        # The end of Q4_0's range that has one code less is clipped by up to a step.
        worst = step * (0.51 if name == "Q8_0" else 1.01)
        assert (error[:, block].max(axis=1) <= worst).all()
    assert error.any()


@pytest.mark.parametrize("kind", quality.OUTLIERS)
def test_outliers_are_in_eight_channels_of_what_reads_them(
    tiny_checkpoint: Path, kind: str
) -> None:
    change = with_outliers(kind, 84, seed=1)
    touched = set()
    for row in rows_of(tiny_checkpoint):
        values = np.ones((3, 84) if len(row.shape) > 1 else 84, np.float32)
        after = change(row, values.copy())
        if row.tensor_class == TensorClass.NORM:
            after, values = after + 1, values + 1
        ratio = np.atleast_2d(after / values)[0]
        if (ratio != 1).any():
            touched.add(row.name)
            assert ratio.max() / ratio.min() == pytest.approx(50, rel=1e-5)
            is_large = ratio > np.sqrt(ratio.max() * ratio.min())
            assert min(is_large.sum(), (~is_large).sum()) == 8
    is_norm = {row.name: row.tensor_class == TensorClass.NORM for row in rows_of(tiny_checkpoint)}
    norms = {name for name in touched if is_norm[name]}
    assert bool(norms) == (kind != "weights")
    assert (touched - norms != set()) == (kind != "activations")
    assert "embed_tokens.weight" not in touched


def test_every_recipe_is_compared_and_costs_what_its_formats_say(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    case = quality.Case("tiny", tiny_checkpoint, IDS, is_text=True)
    chosen = [v for v in VARIANTS if v.name in ("int8", "Q4_0")] + [STUDY[-2]]
    results = quality.compare(case, chosen, 1, tmp_path)
    assert [r.variant for r in results] == ["bf16", *(v.name for v in chosen)]
    assert results[0].divergence is None
    kl = {r.variant: r.divergence.kl for r in results if r.divergence is not None}
    assert 0 < kl["int8"] < kl["Q4_0"] < 1
    assert all(r.perplexity is not None and r.perplexity > 1 for r in results)
    bits = {v.name: costs(tiny_checkpoint, v)[0] for v in VARIANTS}
    assert bits["int4-small"] < bits["int4"] < bits["Q8_0"]
    assert costs(tiny_checkpoint, Variant("bf16", "bf16"))[0] > 16  # routers are float32


def test_each_requirement_is_judged_for_each_case() -> None:
    def result(variant: str, kl: float) -> quality.Result:
        return quality.Result("m", variant, 4.5, 1, Divergence(kl, 0.0, 1.0, 10), None)

    good = [result("int8", 0.01), result("int4", 0.105), result("Q4_0", 0.1)]
    assert quality.judge(good) == []
    bad = [result("int8", 0.02), result("int4", 0.106), result("Q4_0", 0.1)]
    first, second = quality.judge(bad)
    assert "KL(int4)" in first
    assert "KL(int8)" in second
