"""What `inspect` and `prepare` show: the table, the unknown, what is not carried."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from make_synthetic_checkpoint import make, parse_options
from sparseflow.cli.main import main
from sparseflow.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All 1,045 names, tiny."""
    return make(
        parse_options(
            ["--names", "qwen3.6", "--tiny", "--layers", "4", str(tmp_path_factory.mktemp("p"))]
        )
    )


@pytest.fixture(scope="module")
def container(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its container, made by the command."""
    output = tmp_path_factory.mktemp("c") / "container"
    assert main(["prepare", str(published), "--output", str(output), "--quiet"]) == 0
    return output


def test_inspect_shows_every_class_and_counts_the_unknown(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(published)]) == 0
    shown = capsys.readouterr()
    for name in (
        "routed experts",
        "shared experts",
        "routers",
        "attention",
        "delta",
        "vision",
        "mtp",
        "per token",
    ):
        assert name in shown.out
    assert "424 tensors classified, 0 unknown" in shown.out
    assert shown.err == ""


def test_inspect_names_what_nothing_claims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make(parse_options(["--tiny", "--layers", "1", "--shards", "1", str(tmp_path)]))
    file = path / "model.safetensors"
    file.write_bytes(
        file.read_bytes().replace(b"layers.0.mlp.gate.weight", b"layers.0.mlp.gate.weirdo")
    )
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr()
    assert "1 unknown" in shown.out
    assert "unknown: model.language_model.layers.0.mlp.gate.weirdo" in shown.err


def test_inspect_json_adds_up(
    published: Path, container: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (published, container):
        assert main(["inspect", str(path), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        for total in ("num_tensors", "nbytes", "bytes_per_token"):
            assert document[total] == sum(line[total] for line in document["classes"])
        experts = document["classes"][0]
        assert experts["bytes_per_token"] == experts["nbytes"] * 3 // 20


def test_inspect_expert_of_a_container_points_at_its_bytes(
    container: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(container), "--expert", "2:17", "--json"]) == 0
    slices = json.loads(capsys.readouterr().out)["slices"]
    assert [part["projection"] for part in slices] == [
        f"{name} {part}" for name in ("gate", "up", "down") for part in ("codes", "scales")
    ]
    assert {part["file"] for part in slices} == {str(container / "experts/layer_002.sfi")}
    assert main(["inspect", str(container), "--expert", "4:0"]) == ConfigError.exit_code


def test_prepare_names_what_it_does_not_carry(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", str(published), "--output", str(tmp_path / "c")]) == 0
    shown = capsys.readouterr()
    assert "int4 container written" in shown.out
    vision, mtp = shown.err.splitlines()
    assert vision.startswith("not carried: 333 vision tensors: model.visual.")
    assert "model.visual.blocks.{0..26}.attn.qkv.weight" in vision
    assert mtp.startswith("not carried: 19 mtp tensors: ")
    assert "mtp.fc.weight" in mtp


def test_prepare_again_says_that_nothing_was_to_be_done(
    published: Path, container: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", str(published), "--output", str(container), "--quiet"]) == 0
    assert "was complete" in capsys.readouterr().out


def test_prepare_json_lists_every_tensor_that_is_left_out(
    published: Path, container: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", str(published), "--output", str(container), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {name: len(found) for name, found in document["not_carried"].items()} == {
        "vision": 333,
        "mtp": 19,
    }


def test_recipe_alone_lists_the_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "--recipe"]) == 0
    shown = capsys.readouterr().out
    for words in ("bf16-v1 (16 bits)", "int8-g64-v1 (8.25 bits)", "int4-g32-v1 (4.5 bits)"):
        assert words in shown
    assert "int6-g64-v1 (6.25 bits)" in shown
    assert "per token" not in shown
    assert main(["prepare", "--recipe", "list", "--json"]) == 0
    recipes = json.loads(capsys.readouterr().out)["recipes"]
    assert [line["recipe"] for line in recipes] == ["bf16", "int8", "int4", "int4-small"]


def test_listed_recipes_tell_what_a_container_of_the_checkpoint_takes(
    published: Path, container: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", str(published), "--recipe", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["recipes"]
    assert main(["inspect", str(container), "--json"]) == 0
    inspected = json.loads(capsys.readouterr().out)
    (line,) = [line for line in lines if line["recipe"] == "int4"]
    assert line["nbytes"] == inspected["nbytes"]
    assert line["bytes_per_token"] == inspected["bytes_per_token"]
    assert main(["prepare", str(published), "--recipe"]) == 0
    assert "bytes per token, at most" in capsys.readouterr().out


def test_inspect_shows_how_each_class_is_stored(
    container: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(container), "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["classes"]
    stored = {line["tensor_class"]: line["formats"] for line in lines}
    assert stored["routed experts"] == ["int4-g32-v1"]
    assert stored["attention"][0] == stored["head"][0] == "int8-g64-v1"
    assert stored["embedding"] == ["bf16-v1"]
    assert stored["routers"] == ["float32"]
    assert main(["inspect", str(container)]) == 0
    assert "int8-g64-v1, float32" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["prepare"], ["prepare", "checkpoint"]])
def test_prepare_without_source_or_output_says_what_is_missing(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == ConfigError.exit_code
    assert "--recipe alone, which lists the recipes" in capsys.readouterr().err


def test_inspect_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == CheckpointError.exit_code
    assert capsys.readouterr().err.startswith(f"sparseflow: {tmp_path}/config.json: no such file")
