"""A container gives back what the checkpoint held; one that does not agree with itself is refused when it is opened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import deserialize

from make_synthetic_checkpoint import make, parse_options
from sparseflow.container.reader import Container, aligned_empty
from sparseflow.container.recipes import RECIPES
from sparseflow.errors import ConfigError, ContainerError, SparseFlowError, UnsupportedError
from sparseflow.prepare.prepare import prepare

PREFIX = "model.language_model."
HEADS = {
    "int8": ("int8-g64-v1", 336 * 128),
    "int4": ("int8-g64-v1", 336 * 128),
    "int4-small": ("int6-g64-v1", 336 * 96),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint in one file."""
    return make(parse_options(["--tiny", "--shards", "1", str(tmp_path_factory.mktemp("source"))]))


@pytest.fixture(scope="module", params=sorted(RECIPES))
def container(
    request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Its container in each recipe."""
    return prepare(source, tmp_path_factory.mktemp("containers") / request.param, request.param)


@pytest.fixture
def copy(source: Path, tmp_path: Path) -> Path:
    """An int8 container that a test may damage."""
    return prepare(source, tmp_path / "copy", "int8")


def published(source: Path, name: str) -> NDArray[np.uint16]:
    """BF16 bits of a tensor as the safetensors library reads them."""
    tensors = dict(deserialize((source / "model.safetensors").read_bytes()))
    return np.frombuffer(tensors[name]["data"], np.uint16).reshape(tensors[name]["shape"])


def widen(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def test_matrices_have_the_recipe_s_format(container: Path, source: Path) -> None:
    with Container.open(container) as opened:
        head = opened.read_matrix("lm_head.weight")
        assert (head.rows, head.cols) == (331, 72)
        assert head.codes.ctypes.data % 64 == 0
        if opened.manifest.recipe == "bf16":
            assert head.format == "bf16-v1"
            assert head.codes.tobytes() == published(source, "lm_head.weight").tobytes()
            assert head.scales is None
        else:
            weight_format, num_codes = HEADS[opened.manifest.recipe]
            assert head.format == weight_format
            assert head.codes.shape == (num_codes,)
            assert head.scales is not None
            assert head.scales.shape == (336 * 2,)
            assert head.scales.dtype == np.float16


@pytest.mark.parametrize(
    "name",
    [
        "norm.weight",
        "layers.3.self_attn.q_norm.weight",
        "layers.0.linear_attn.dt_bias",
        "layers.0.linear_attn.in_proj_a.weight",
        "layers.0.linear_attn.norm.weight",
        "layers.2.mlp.gate.weight",
        "layers.2.mlp.shared_expert_gate.weight",
    ],
)
def test_sensitive_tensors_are_float32_in_every_recipe(
    container: Path, source: Path, name: str
) -> None:
    with Container.open(container) as opened:
        assert opened.manifest.tensors[name].weight_format == "float32"
        assert (opened.read_vector(name) == widen(published(source, PREFIX + name))).all()


def test_convolution_loses_its_middle_dimension(container: Path, source: Path) -> None:
    name = "layers.1.linear_attn.conv1d.weight"
    with Container.open(container) as opened:
        weight = opened.read_vector(name)
    assert weight.shape == (128, 4)
    assert (weight == widen(published(source, PREFIX + name))[:, 0]).all()


def test_derived_constants_are_within_half_a_unit_of_the_last_place(
    container: Path, source: Path
) -> None:
    with Container.open(container) as opened:
        neg_exp_a = opened.read_vector("layers.0.linear_attn.neg_exp_a")
        inv_freq = opened.read_vector("rotary.inv_freq")
        assert "layers.0.linear_attn.A_log" not in opened.manifest.tensors
    a_log = widen(published(source, PREFIX + "layers.0.linear_attn.A_log")).astype(np.float64)
    assert (neg_exp_a == (-np.exp(a_log)).astype(np.float32)).all()
    assert (inv_freq == (1e7 ** (-np.arange(0, 8, 2) / 8)).astype(np.float32)).all()


def test_embedding_rows_are_the_checkpoint_s_bits(container: Path, source: Path) -> None:
    embedding = published(source, PREFIX + "embed_tokens.weight")
    with Container.open(container) as opened:
        assert (opened.embedding_rows([330, 0, 7, 7]) == embedding[[330, 0, 7, 7]]).all()
        assert (opened.embedding_rows(np.array([5], np.int32)) == embedding[[5]]).all()
        assert opened.embedding_rows([]).shape == (0, 72)
        for token in (331, -1):
            with pytest.raises(ConfigError, match=f"token {token}"):
                opened.embedding_rows([token])


def test_every_layer_has_its_file_and_the_configuration_is_the_text_model_s(
    container: Path,
) -> None:
    with Container.open(container) as opened:
        assert [path.name for path in opened.expert_files] == [
            f"layer_{i:03d}.sfi" for i in range(4)
        ]
        for path, layout in zip(opened.expert_files, opened.layouts, strict=True):
            assert path.stat().st_size == layout.file_bytes
        assert opened.config["model_type"] == "qwen3_5_moe"
        assert opened.config["hidden_size"] == 72


def test_dense_file_is_what_the_safetensors_library_reads(container: Path) -> None:
    tensors = dict(deserialize((container / "dense.safetensors").read_bytes()))
    with Container.open(container) as opened:
        for name in ("norm.weight", "rotary.inv_freq"):
            assert tensors[name]["data"] == opened.read_vector(name).tobytes()
        head = opened.read_matrix("lm_head.weight")
        suffix = ".codes" if head.scales is not None else ""
        assert tensors["lm_head.weight" + suffix]["data"] == head.codes.tobytes()


def test_a_tied_head_is_stored(tmp_path: Path) -> None:
    source = make(parse_options(["--tiny", "--layers", "1", "--shards", "1", str(tmp_path / "s")]))
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    with Container.open(prepare(source, tmp_path / "c", "bf16")) as opened:
        head = opened.read_matrix("lm_head.weight").codes.tobytes()
        assert head == opened.embedding_rows(range(331)).tobytes()


def test_unknown_names_are_refused(container: Path) -> None:
    with Container.open(container) as opened:
        for read in (opened.read_matrix, opened.read_vector, opened.read_entry):
            with pytest.raises(ConfigError, match="ghost"):
                read("ghost")
        with pytest.raises(ConfigError, match="not a matrix"):
            opened.read_matrix("norm.weight")
        with pytest.raises(ConfigError, match="not float32"):
            opened.read_vector("embed_tokens.weight")


def test_closing_twice_is_harmless(container: Path) -> None:
    opened = Container.open(container)
    opened.close()
    opened.close()


def edit_json(path: Path, **values: Any) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, **values}))


def edit_manifest(copy: Path, section: str, name: str, value: Any) -> None:
    document = json.loads((copy / "manifest.json").read_text())
    document[section][name] = value
    (copy / "manifest.json").write_text(json.dumps(document))


def test_missing_file_is_named(copy: Path) -> None:
    (copy / "experts/layer_002.sfi").unlink()
    with pytest.raises(ContainerError, match=r"layer_002\.sfi.*not there"):
        Container.open(copy)


def test_file_of_another_size_is_named(copy: Path) -> None:
    with (copy / "experts/layer_002.sfi").open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(ContainerError, match=r"layer_002\.sfi: 4096 bytes"):
        Container.open(copy)


def test_file_that_the_manifest_does_not_list_is_missing(copy: Path) -> None:
    document = json.loads((copy / "manifest.json").read_text())
    del document["files"]["experts/layer_001.sfi"]
    (copy / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(ContainerError, match=r"does not list experts/layer_001\.sfi"):
        Container.open(copy)


def resize_config(copy: Path) -> None:
    nbytes = (copy / "config.json").stat().st_size
    edit_manifest(copy, "files", "config.json", {"bytes": nbytes, "sha256": "0" * 64})


def test_configuration_of_another_model_is_refused(copy: Path) -> None:
    edit_json(copy / "config.json", num_experts=8)
    resize_config(copy)
    with pytest.raises(ContainerError, match="num_experts is 20 in the manifest, 8 in"):
        Container.open(copy)


def test_configuration_that_asks_for_other_shapes_is_refused(copy: Path) -> None:
    edit_json(copy / "config.json", vocab_size=400)
    resize_config(copy)
    with pytest.raises(ContainerError, match="weight"):
        Container.open(copy)


@pytest.mark.parametrize("name", ["num_key_value_heads", "head_dim", "linear_conv_kernel_dim"])
def test_configuration_without_a_field_is_our_damage(copy: Path, name: str) -> None:
    edit_json(copy / "config.json", **{name: None})
    resize_config(copy)
    with pytest.raises(ContainerError, match=name):
        Container.open(copy)


def test_manifest_that_lacks_a_tensor_is_refused(copy: Path) -> None:
    document = json.loads((copy / "manifest.json").read_text())
    del document["tensors"]["layers.0.mlp.gate.weight"]
    (copy / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(ContainerError, match=r"layers\.0\.mlp\.gate\.weight"):
        Container.open(copy)


def test_unknown_recipe_is_named(copy: Path) -> None:
    edit_json(copy / "manifest.json", recipe="int5")
    with pytest.raises(UnsupportedError, match="'int5'"):
        Container.open(copy)


def poke(path: Path, needle: bytes, data: bytes) -> None:
    raw = path.read_bytes()
    assert needle in raw
    path.write_bytes(raw.replace(needle, data, 1))


def test_dense_header_that_disagrees_with_the_manifest_is_refused(copy: Path) -> None:
    poke(copy / "dense.safetensors", b'"norm.weight"', b'"Norm.weight"')
    with pytest.raises(ContainerError, match=r"'norm\.weight' is missing"):
        Container.open(copy)


@pytest.mark.parametrize("bits", [0x7F800000, 0x7FC00000])
def test_scale_that_is_not_finite_is_refused(copy: Path, bits: int) -> None:
    with Container.open(copy) as opened:
        scales = opened.read_matrix("lm_head.weight").scales
    assert scales is not None
    poke(
        copy / "dense.safetensors",
        scales.tobytes(),
        np.uint32(bits).tobytes() + scales.tobytes()[4:],
    )
    with Container.open(copy) as opened, pytest.raises(ContainerError, match="not finite"):
        opened.read_matrix("lm_head.weight")


@pytest.mark.parametrize("nbytes", [1, 4096, (2 << 20) - 1, 2 << 20, (2 << 20) + 5])
def test_memory_is_aligned(nbytes: int) -> None:
    memory = aligned_empty(nbytes)
    assert memory.nbytes == nbytes
    assert memory.ctypes.data % (64 if nbytes < 2 << 20 else 2 << 20) == 0
    memory[:] = 1


def test_a_checkpoint_is_no_container(source: Path) -> None:
    with pytest.raises(SparseFlowError, match="manifest"):
        Container.open(source)


def test_a_copy_elsewhere_is_enough_by_itself(container: Path, tmp_path: Path) -> None:
    shutil.copytree(container, tmp_path / "elsewhere")
    with Container.open(tmp_path / "elsewhere") as opened:
        assert opened.read_vector("norm.weight").shape == (72,)
