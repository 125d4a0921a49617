"""The index says where tensors lie; shards must agree, and nothing outside the directory is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from make_synthetic_checkpoint import make, parse_options
from sparseflow.checkpoint.index import INDEX_NAME, read_shard_headers
from sparseflow.errors import CheckpointError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Two shards and an index."""
    return make(parse_options(["--tiny", "--layers", "1", "--shards", "2", str(tmp_path / "c")]))


def edit_index(checkpoint: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    path = checkpoint / INDEX_NAME
    index = json.loads(path.read_text())
    edit(index)
    path.write_text(json.dumps(index))


def shards(checkpoint: Path) -> list[Path]:
    return sorted(checkpoint.glob("*.safetensors"))


def test_all_shards_are_read(checkpoint: Path) -> None:
    headers = read_shard_headers(checkpoint)
    assert [header.path for header in headers] == shards(checkpoint)
    index = json.loads((checkpoint / INDEX_NAME).read_text())
    assert {name for header in headers for name in header.tensors} == index["weight_map"].keys()


def test_one_file_needs_no_index(tmp_path: Path) -> None:
    path = make(parse_options(["--tiny", "--layers", "1", "--shards", "1", str(tmp_path)]))
    assert [header.path.name for header in read_shard_headers(path)] == ["model.safetensors"]


def test_a_directory_without_weights_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        read_shard_headers(tmp_path)


def test_swapped_shards_are_refused(checkpoint: Path) -> None:
    first, second = shards(checkpoint)
    first.rename(checkpoint / "swap")
    second.rename(first)
    (checkpoint / "swap").rename(second)
    with pytest.raises(CheckpointError, match="are shards swapped"):
        read_shard_headers(checkpoint)


def test_missing_shard_is_named(checkpoint: Path) -> None:
    shards(checkpoint)[1].unlink()
    with pytest.raises(CheckpointError, match=r"00002-of-00002.*no such file"):
        read_shard_headers(checkpoint)


def test_tensor_that_no_shard_has_is_named(checkpoint: Path) -> None:
    edit_index(
        checkpoint, lambda index: index["weight_map"].update(ghost=shards(checkpoint)[0].name)
    )
    with pytest.raises(CheckpointError, match=r"'ghost'.*no shard has it"):
        read_shard_headers(checkpoint)


def test_tensor_that_the_index_does_not_list_is_named(checkpoint: Path) -> None:
    edit_index(checkpoint, lambda index: index["weight_map"].pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"'lm_head.weight'.*not in the index"):
        read_shard_headers(checkpoint)


def test_tensor_in_two_shards_is_refused(checkpoint: Path) -> None:
    first, second = shards(checkpoint)
    shutil.copy(first, second)
    with pytest.raises(CheckpointError, match=r"lies in .*00001.* and in .*00002"):
        read_shard_headers(checkpoint)


@pytest.mark.parametrize(
    "name",
    [
        "../model.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "..\\model.safetensors",
        "c:model.safetensors",
        "..",
        ".hidden.safetensors",
        "",
        "model.bin",
        "a\0.safetensors",
        7,
        None,
    ],
)
def test_shard_names_that_lead_elsewhere_are_refused(checkpoint: Path, name: object) -> None:
    edit_index(checkpoint, lambda index: index["weight_map"].update({"lm_head.weight": name}))
    with pytest.raises(CheckpointError, match="only plain file names"):
        read_shard_headers(checkpoint)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {}}',
        '{"weight_map": {"a": "b.safetensors",}}',
    ],
)
def test_damaged_index_is_refused(checkpoint: Path, text: str) -> None:
    (checkpoint / INDEX_NAME).write_text(text)
    with pytest.raises(CheckpointError, match=INDEX_NAME):
        read_shard_headers(checkpoint)


def test_symbolic_links_to_shards_are_followed(checkpoint: Path, tmp_path: Path) -> None:
    for shard in shards(checkpoint):
        blob = tmp_path / f"blob-{shard.name[6:11]}"
        shard.rename(blob)
        shard.symlink_to(blob)
    assert len(read_shard_headers(checkpoint)) == 2
