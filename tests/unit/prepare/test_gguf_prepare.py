"""A container made of a GGUF file is that of the checkpoint behind it, as far as the file's types kept the weights."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

gguf = pytest.importorskip("gguf", reason="needs the gguf package: pip install gguf")

from gguf_bytes import (  # noqa: E402
    LLAMA,
    TOKENIZER,
    WORDS,
    Stored,
    bfloat16,
    float32,
    gguf_bytes,
    llama_tensors,
)

from make_synthetic_checkpoint import make, parse_options  # noqa: E402
from peers.gguf_writer import write_gguf  # noqa: E402
from sparseflow.checkpoint.checkpoint import Checkpoint, CheckpointTensor  # noqa: E402
from sparseflow.checkpoint.gguf.checkpoint import GgufCheckpoint  # noqa: E402
from sparseflow.cli.main import main  # noqa: E402
from sparseflow.config import EngineConfig  # noqa: E402
from sparseflow.container.matrix_formats import convert_rows, to_float32  # noqa: E402
from sparseflow.container.reader import Container  # noqa: E402
from sparseflow.container.recipes import get_recipe  # noqa: E402
from sparseflow.engine.engine import Engine  # noqa: E402
from sparseflow.engine.generation_config import read_generation_config  # noqa: E402
from sparseflow.errors import (  # noqa: E402
    CheckpointError,
    ConfigError,
    SparseFlowError,
    UnsupportedError,
)
from sparseflow.prepare.plan import plan_container  # noqa: E402
from sparseflow.prepare.prepare import prepare  # noqa: E402
from sparseflow.prepare.verify import verify  # noqa: E402
from sparseflow.tokenizer.chat_template import find_chat_template  # noqa: E402
from sparseflow.tokenizer.tokenizer import Tokenizer  # noqa: E402

Type = gguf.GGMLQuantizationType
IDS = [1, 17, 5, 300, 42, 8, 99, 1]
METADATA = {**LLAMA, **TOKENIZER}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Widths that are whole blocks, more value heads than key heads."""
    return make(parse_options(["--tiny", "--chain", str(tmp_path_factory.mktemp("c") / "c")]))


@pytest.fixture(scope="module")
def files(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The checkpoint as GGUF, by the type of its experts."""
    directory = tmp_path_factory.mktemp("g")
    with Checkpoint.open(checkpoint) as opened:
        return {
            name: write_gguf(opened, directory / f"{name}.gguf", Type[name])
            for name in ("BF16", "F16", "Q8_0", "Q4_0")
        }


def payload(container: Path) -> dict[str, bytes]:
    """Every file of weights."""
    paths = [container / "dense.safetensors", *(container / "experts").iterdir()]
    return {path.name: path.read_bytes() for path in paths}


def entries(container: Path) -> dict[str, bytes]:
    """The entries of dense.safetensors."""
    raw = (container / "dense.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    del header["__metadata__"]
    begin = 8 + length
    return {
        name: raw[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]]
        for name, entry in header.items()
    }


def logits(container: Path, ids: list[int]) -> NDArray[np.float32]:
    with Engine.open(container, EngineConfig(ctx=64, threads=1)) as engine:
        return engine.logits(ids)


def read(checkpoint: Checkpoint, tensor: CheckpointTensor) -> NDArray[np.float32]:
    raw = np.empty(tensor.nbytes, np.uint8)
    checkpoint.read_into(tensor.file, tensor.offset, raw.data)
    return to_float32(raw, tensor.dtype, tensor.name)


@pytest.mark.parametrize("recipe", ["bf16", "int8", "int4"])
def test_a_bf16_file_makes_the_checkpoints_container(
    recipe: str, checkpoint: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    expected = prepare(checkpoint, tmp_path / "expected", recipe)
    found = prepare(files["BF16"], tmp_path / "found", recipe, tokenizer=checkpoint)
    theirs, ours = payload(expected), payload(found)
    assert theirs.keys() == ours.keys()
    for name in theirs.keys() - {"dense.safetensors"}:
        assert ours[name] == theirs[name], name
    ours, theirs = entries(found), entries(expected)
    for name in theirs:
        if ours[name] == theirs[name]:
            continue
        # The file has float32(1 + weight); a weight below 2^-16 loses bits of its own, not of the sum.
        assert name.endswith("norm.weight")
        pair = (np.frombuffer(side[name], np.float32) for side in (ours, theirs))
        np.testing.assert_array_equal(*(values + np.float32(1) for values in pair))
    np.testing.assert_array_equal(logits(found, IDS), logits(expected, IDS))


def test_odd_widths_in_bf16_make_the_same_bytes(tmp_path: Path) -> None:
    source = make(parse_options(["--tiny", str(tmp_path / "checkpoint")]))
    with Checkpoint.open(source) as opened:
        file = write_gguf(opened, tmp_path / "a.gguf", Type.BF16)
    expected = payload(prepare(source, tmp_path / "expected", "int8"))
    assert payload(prepare(file, tmp_path / "found", "int8", tokenizer=source)) == expected


def test_an_f16_file_holds_the_values_rounded_to_f16(
    checkpoint: Path, files: dict[str, Path]
) -> None:
    with Checkpoint.open(checkpoint) as source, GgufCheckpoint.open(files["F16"]) as opened:
        assert opened.quantized_types == []
        for name in ("self_attn.q_proj.weight", "mlp.experts.gate_up_proj"):
            canonical = f"layers.3.{name}"
            found, expected = (side.find(canonical) for side in (opened, source))
            assert found is not None
            assert expected is not None
            assert found.dtype == "F16"
            rounded = read(source, expected).astype(np.float16)
            np.testing.assert_array_equal(read(opened, found), rounded.astype(np.float32))


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0"])
def test_a_quantized_file_is_quantized_from_its_dequantized_values(
    name: str, checkpoint: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    container = prepare(files[name], tmp_path / "container", "int4", tokenizer=checkpoint)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(files[name]).tensors}
    down = tensors["blk.1.ffn_down_exps.weight"]
    values = gguf.quants.dequantize(down.data, down.tensor_type)[5].astype(np.float32)
    with Container.open(container) as opened:
        codes, scales = convert_rows(
            values.reshape(-1).view(np.uint8),
            "F32",
            values.shape,
            opened.layouts[1].weight_format,
            "",
        )
        sections = [bytes(data) for _, data in opened.expert_sections(1, 5)]
    assert codes.tobytes() in sections
    assert scales.tobytes() in sections
    assert verify(container, files[name], tokenizer=checkpoint).is_good


def test_a_quantized_files_container_runs(
    checkpoint: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    exact, requantized = (
        logits(prepare(files[name], tmp_path / name, "int8", tokenizer=checkpoint), IDS)
        for name in ("BF16", "Q8_0")
    )
    assert (exact.argmax(axis=1) == requantized.argmax(axis=1)).mean() >= 0.75


def test_bf16_is_refused_for_weights_that_it_cannot_hold(
    checkpoint: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match="values that BF16 cannot hold; choose recipe int8"):
        prepare(files["Q8_0"], tmp_path / "container", "bf16", tokenizer=checkpoint)
    assert not (tmp_path / "container").exists()


def mixtral_file(checkpoint: Path, path: Path) -> Path:
    """The golden Mixtral as a llama GGUF file in BF16: rows of q and k paired, experts together."""
    with Checkpoint.open(checkpoint) as source:
        config = source.config
        names = {
            "embed_tokens.weight": "token_embd.weight",
            "norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight",
        }
        parts = {
            "input_layernorm.weight": "attn_norm",
            "post_attention_layernorm.weight": "ffn_norm",
            "self_attn.q_proj.weight": "attn_q",
            "self_attn.k_proj.weight": "attn_k",
            "self_attn.v_proj.weight": "attn_v",
            "self_attn.o_proj.weight": "attn_output",
            "mlp.gate.weight": "ffn_gate_inp",
        }
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        tensors: dict[str, Stored] = {}
        layers = range(config["num_hidden_layers"])
        for layer in layers:
            names |= {
                f"layers.{layer}.{old}": f"blk.{layer}.{new}.weight" for old, new in parts.items()
            }
        for canonical, name in names.items():
            tensor = source.find(canonical)
            assert tensor is not None
            bits = read_bits(source, tensor)
            part = canonical.split(".")[-2]
            if part in heads:
                paired = bits.reshape(config[heads[part]], 2, -1, bits.shape[1])
                bits = np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(bits.shape)
            tensors[name] = bfloat16(bits)
        for layer in layers:
            for part in ("gate", "up", "down"):
                found = [
                    source.find(f"layers.{layer}.mlp.experts.{expert}.{part}_proj.weight")
                    for expert in range(config["num_experts"])
                ]
                bits = np.stack([read_bits(source, tensor) for tensor in found if tensor])
                tensors[f"blk.{layer}.ffn_{part}_exps.weight"] = bfloat16(bits)
    sizes = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["moe_intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_parameters"]["rope_theta"]),
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"],
    }
    metadata: dict[str, Any] = {"general.architecture": "llama"}
    metadata |= {f"llama.{key}": value for key, value in sizes.items()}
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def read_bits(checkpoint: Checkpoint, tensor: CheckpointTensor) -> NDArray[np.uint16]:
    raw = np.empty(tensor.nbytes, np.uint8)
    checkpoint.read_into(tensor.file, tensor.offset, raw.data)
    return raw.view(np.uint16).reshape(tensor.shape)


def test_a_llama_file_with_experts_is_a_mixtral(
    mixtral_checkpoint: Path, mixtral_bf16: Path, tmp_path: Path
) -> None:
    file = mixtral_file(mixtral_checkpoint, tmp_path / "a.gguf")
    container = prepare(file, tmp_path / "container", "bf16", tokenizer=mixtral_checkpoint)
    assert payload(container) == payload(mixtral_bf16)
    np.testing.assert_array_equal(logits(container, [1, 2, 3]), logits(mixtral_bf16, [1, 2, 3]))


# Files beside the weights


def write(path: Path, metadata: dict[str, Any]) -> Path:
    path.write_bytes(gguf_bytes(metadata, llama_tensors()))
    return path


def test_tokenizer_template_and_sampling_come_from_the_metadata(tmp_path: Path) -> None:
    metadata = {**METADATA, "general.sampling.temp": 0.7, "general.sampling.top_k": 20}
    container = prepare(write(tmp_path / "a.gguf", metadata), tmp_path / "container", "int8")
    tokenizer = Tokenizer.open(container)
    assert tokenizer.size == len(WORDS)
    assert tokenizer.encode("ab a<|im_end|><think>") == [5, 7, 2, 8]
    assert tokenizer.special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    template = find_chat_template(container, tokenizer)
    assert template is not None
    assert template.render([{"role": "user", "content": "ab"}]) == "ab"
    generation = read_generation_config(container)
    assert generation == {"eos_token_id": [2, 0], "temperature": 0.7, "top_k": 20}
    with Engine.open(container, EngineConfig(ctx=32, threads=1)) as engine:
        assert engine.logits([3, 4]).shape == (2, 12)


def test_a_tokenizer_that_is_not_read_is_refused_with_the_way_out(tmp_path: Path) -> None:
    for changes, phrase in (
        ({"tokenizer.ggml.model": "none"}, "has no tokenizer"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer 'llama' is not read"),
        ({"tokenizer.ggml.pre": "gpt-9"}, "pre-tokenizer 'gpt-9' is not known"),
    ):
        file = write(tmp_path / "a.gguf", {**METADATA, **changes})
        with pytest.raises(UnsupportedError, match=phrase) as caught:
            prepare(file, tmp_path / "container", "int8")
        assert "--tokenizer DIR_OR_JSON" in str(caught.value)
        assert not (tmp_path / "container").exists()


def test_another_tokenizer_takes_the_place_of_the_metadatas(
    mixtral_checkpoint: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "a.gguf", {**METADATA, "tokenizer.ggml.model": "llama"})
    whole = prepare(file, tmp_path / "whole", "int8", tokenizer=mixtral_checkpoint)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (whole / name).read_bytes() == (mixtral_checkpoint / name).read_bytes()
    one = mixtral_checkpoint / "tokenizer.json"
    alone = prepare(file, tmp_path / "alone", "int8", tokenizer=one)
    assert (alone / "tokenizer.json").read_bytes() == one.read_bytes()
    assert (alone / "chat_template.jinja").read_text() == METADATA["tokenizer.chat_template"]
    assert verify(alone, file, tokenizer=one).is_good
    assert not verify(alone, file, tokenizer=mixtral_checkpoint).is_good


def test_a_tokenizer_that_is_none_or_not_wanted_is_refused(
    mixtral_checkpoint: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "a.gguf", METADATA)
    with pytest.raises(ConfigError, match=r"no tokenizer\.json there"):
        prepare(file, tmp_path / "container", tokenizer=tmp_path)
    with pytest.raises(ConfigError, match="not a tokenizer"):
        prepare(file, tmp_path / "container", tokenizer=mixtral_checkpoint / "config.json")
    with pytest.raises(ConfigError, match="--tokenizer is for GGUF files"):
        prepare(mixtral_checkpoint, tmp_path / "container", tokenizer=mixtral_checkpoint)


def test_an_unfinished_container_of_another_file_is_not_continued(tmp_path: Path) -> None:
    finished = prepare(write(tmp_path / "a.gguf", METADATA), tmp_path / "container", "int8")
    other = write(tmp_path / "b.gguf", {**METADATA, "llama.context_length": 32})
    with pytest.raises(ConfigError, match="of another checkpoint or recipe"):
        prepare(other, finished, "int8")


@pytest.mark.parametrize("wrong", [[1, 2], [], ["a"], "text", -1, 0.5, 1e30, 1 << 31, True])
def test_metadata_of_any_type_and_value_give_our_errors(wrong: Any, tmp_path: Path) -> None:
    """Or none: a name may be any text, a count may be left out."""
    path = tmp_path / "a.gguf"
    tensors = llama_tensors()
    if wrong == -1:
        wrong = struct.pack("<Ii", 5, -1)
    for key in METADATA:
        path.write_bytes(gguf_bytes({**METADATA, key: wrong}, tensors))
        try:
            with GgufCheckpoint.open(path) as opened:
                plan_container(opened, get_recipe("int8"))
        except SparseFlowError as problem:
            message = str(problem)
            assert "\n" not in message, key


def test_a_value_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tensors["blk.0.attn_norm.weight"] = float32(np.full(32, np.inf, np.float32))
    (tmp_path / "a.gguf").write_bytes(gguf_bytes(METADATA, tensors))
    with pytest.raises(CheckpointError, match=r"attn_norm\.weight' has a value that is not finite"):
        prepare(tmp_path / "a.gguf", tmp_path / "container", "int8")
    assert not (tmp_path / "container").exists()


# The command line


def test_prepare_says_what_it_requantizes_from(
    checkpoint: Path,
    files: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--recipe", "int8", "--tokenizer", str(checkpoint)]
    assert main(["prepare", str(files["Q4_0"]), "-o", str(tmp_path / "c"), *words]) == 0
    shown = capsys.readouterr()
    assert "requantized from Q4_0, Q8_0: its quality is bounded by the source's" in shown.out
    assert main(["prepare", str(files["BF16"]), "-o", str(tmp_path / "d"), *words]) == 0
    assert "requantized" not in capsys.readouterr().out


def test_recipes_are_listed_with_the_sizes_that_a_file_would_take(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", str(files["Q4_0"]), "--recipe", "list", "--json", "-"]) == 0
    recipes = json.loads(capsys.readouterr().out)["recipes"]
    assert all(line["nbytes"] > 0 for line in recipes)


def test_inspect_shows_the_files_own_types(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(files["Q4_0"])]) == 0
    shown = capsys.readouterr().out
    assert "Q4_0" in shown
    assert "0 unknown" in shown
    assert main(["inspect", str(files["Q4_0"]), "--expert", "0:1"]) == ConfigError.exit_code
    assert "byte ranges" in capsys.readouterr().err


def test_a_file_is_no_container(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(files["Q4_0"]), "a"]) == ConfigError.exit_code
    assert "a GGUF file, not a container; first: sparseflow prepare" in capsys.readouterr().err
