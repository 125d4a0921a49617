"""manifest.json: written and read back the same; what is hostile or of another version is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparseflow.container.manifest import (
    ExpertsRecord,
    FileRecord,
    Manifest,
    TensorRecord,
    read_manifest,
)
from sparseflow.errors import ContainerError, UnsupportedError

MANIFEST = Manifest(
    model_type="qwen3_5_moe",
    recipe="int8",
    source={"config_sha256": "ab", "shards": {}},
    tensors={
        "norm.weight": TensorRecord("float32", (72,)),
        "lm_head.weight": TensorRecord("int8-v1", (331, 72)),
    },
    experts=ExpertsRecord("int8-v1", 1, 20, 72, 40),
    files={
        "experts/layer_000.sfi": FileRecord(4096, "0" * 64),
        "config.json": FileRecord(7, "f" * 64),
    },
)
DELETE = object()


def write(directory: Path, path: tuple[str, ...] = (), value: Any = None) -> Path:
    """The manifest with the value at `path` replaced or deleted."""
    document = json.loads(MANIFEST.to_json())
    target = document
    for key in path[:-1]:
        target = target[key]
    if path and value is DELETE:
        del target[path[-1]]
    elif path:
        target[path[-1]] = value
    (directory / "manifest.json").write_text(json.dumps(document))
    return directory


def test_what_was_written_is_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(MANIFEST.to_json())
    assert read_manifest(tmp_path) == MANIFEST


def test_equal_manifests_have_equal_bytes() -> None:
    files = dict(reversed(MANIFEST.files.items()))
    again = Manifest(
        MANIFEST.model_type,
        MANIFEST.recipe,
        MANIFEST.source,
        MANIFEST.tensors,
        MANIFEST.experts,
        files,
    )
    assert again.to_json() == MANIFEST.to_json()


@pytest.mark.parametrize("version", [0, 2, "1", 1.0, True, None])
def test_other_format_versions_are_refused(tmp_path: Path, version: object) -> None:
    with pytest.raises(UnsupportedError, match="format version"):
        read_manifest(write(tmp_path, ("format_version",), version))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("files",), []),
        (("files", "config.json"), 7),
        (("files", "config.json", "bytes"), -1),
        (("files", "config.json", "bytes"), 1.5),
        (("files", "config.json", "bytes"), 1 << 63),
        (("files", "config.json", "sha256"), "f" * 63),
        (("files", "config.json", "sha256"), "F" * 64),
        (("tensors",), None),
        (("tensors", "norm.weight", "shape"), []),
        (("tensors", "norm.weight", "shape"), [0]),
        (("tensors", "norm.weight", "shape"), [72, 1, 1]),
        (("tensors", "norm.weight", "shape"), [-72]),
        (("tensors", "norm.weight", "shape"), ["72"]),
        (("tensors", "norm.weight", "shape"), [1 << 60, 1 << 60]),
        (("tensors", "norm.weight", "format"), None),
        (("experts",), []),
        (("experts", "num_layers"), 0),
        (("experts", "num_layers"), 1 << 40),
        (("experts", "num_experts"), "20"),
        (("recipe",), 8),
        (("model_type",), DELETE),
        (("source",), DELETE),
        (("experts", "hidden_size"), DELETE),
    ],
)
def test_wrong_values_are_refused(tmp_path: Path, path: tuple[str, ...], value: object) -> None:
    with pytest.raises(ContainerError, match=r"manifest\.json"):
        read_manifest(write(tmp_path, path, value))


@pytest.mark.parametrize(
    "name", ["../a", "/etc/passwd", "a/../../b", "a//b", "", ".", "a\\b", ".prepare/x", "a\nb"]
)
def test_paths_that_lead_out_of_the_container_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ContainerError, match="inside the container"):
        read_manifest(write(tmp_path, ("files", name), {"bytes": 1, "sha256": "0" * 64}))


@pytest.mark.parametrize("path", [("tensors", "norm.weight", "format"), ("experts", "format")])
def test_unknown_formats_are_named(tmp_path: Path, path: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedError, match="'int3-v9'"):
        read_manifest(write(tmp_path, path, "int3-v9"))


def test_a_directory_without_manifest_is_no_container(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="no such file"):
        read_manifest(tmp_path)
