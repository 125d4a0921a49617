"""manifest.json: what a container is and which files it has. Written last; without it a directory
is no container.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparseflow.checkpoint.json_file import read_json_object
from sparseflow.checkpoint.model_config import get_count
from sparseflow.container.recipes import KNOWN_FORMATS
from sparseflow.errors import ContainerError, UnsupportedError

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1
MAX_MANIFEST_BYTES = 8 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and SHA-256 of one file of a container."""

    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """Format and shape of one tensor of dense.safetensors."""

    weight_format: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExpertsRecord:
    """Geometry of the routed experts: one .sfi file for each of `num_layers` layers."""

    weight_format: str
    num_layers: int
    num_experts: int
    hidden_size: int
    moe_intermediate_size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of manifest.json."""

    model_type: str
    recipe: str
    source: dict[str, Any]
    """Hashes of the checkpoint's config.json and shard headers."""
    tensors: dict[str, TensorRecord]
    experts: ExpertsRecord
    files: dict[str, FileRecord]
    """By path relative to the container, with forward slashes."""

    def to_json(self) -> bytes:
        """The bytes of manifest.json: the same for equal manifests."""
        experts = self.experts
        value = {
            "format_version": FORMAT_VERSION,
            "model_type": self.model_type,
            "recipe": self.recipe,
            "source": self.source,
            "experts": {
                "format": experts.weight_format,
                "num_layers": experts.num_layers,
                "num_experts": experts.num_experts,
                "hidden_size": experts.hidden_size,
                "moe_intermediate_size": experts.moe_intermediate_size,
            },
            "tensors": {
                name: {"format": tensor.weight_format, "shape": list(tensor.shape)}
                for name, tensor in self.tensors.items()
            },
            "files": {
                path: {"bytes": record.nbytes, "sha256": record.sha256}
                for path, record in sorted(self.files.items())
            },
        }
        return (json.dumps(value, indent=1) + "\n").encode()


def expert_file_name(layer: int) -> str:
    """Path of the .sfi file of a layer, relative to the container."""
    return f"experts/layer_{layer:03d}.sfi"


def read_manifest(directory: Path) -> Manifest:
    """The checked manifest of the container in `directory`.

    Raises ContainerError if there is none or it is damaged, UnsupportedError for another format
    version or a format that is not known.
    """
    path = directory / MANIFEST_NAME
    raw = read_json_object(path, MAX_MANIFEST_BYTES, ContainerError)
    version = raw.get("format_version")
    if version != FORMAT_VERSION or type(version) is not int:
        raise UnsupportedError(
            f"{path}: format version {str(version)[:20]}; this program reads version"
            f" {FORMAT_VERSION}: prepare again"
        )
    where = str(path)
    source = _field(raw, "source", dict, where)
    return Manifest(
        model_type=_field(raw, "model_type", str, where),
        recipe=_field(raw, "recipe", str, where),
        source=source,
        tensors={
            name: _tensor(item, f"{where}: tensor {name!r}")
            for name, item in _field(raw, "tensors", dict, where).items()
        },
        experts=_experts(_field(raw, "experts", dict, where), where),
        files={
            _file_name(name, where): _file(item, f"{where}: file {name!r}")
            for name, item in _field(raw, "files", dict, where).items()
        },
    )


def _field(raw: Any, name: str, kind: type, where: str) -> Any:
    value = raw.get(name) if isinstance(raw, dict) else None
    if type(value) is not kind:
        raise ContainerError(f"{where}: {name} is missing or not a {kind.__name__}")
    return value


def _tensor(raw: Any, where: str) -> TensorRecord:
    shape = _field(raw, "shape", list, where)
    if not 1 <= len(shape) <= 2 or not all(
        type(dim) is int and 1 <= dim <= 1 << 32 for dim in shape
    ):
        raise ContainerError(f"{where}: shape {str(shape)[:60]} is not one or two counts")
    return TensorRecord(_format(raw, where), tuple(shape))


def _experts(raw: dict[str, Any], where: str) -> ExpertsRecord:
    def count(name: str, most: int) -> int:
        return get_count(raw, name, most, where=f"{where}: experts", error=ContainerError)

    return ExpertsRecord(
        _format(raw, f"{where}: experts"),
        count("num_layers", 1 << 12),
        count("num_experts", 1 << 14),
        count("hidden_size", 1 << 16),
        count("moe_intermediate_size", 1 << 16),
    )


def _format(raw: Any, where: str) -> str:
    value: str = _field(raw, "format", str, where)
    if value not in KNOWN_FORMATS:
        raise UnsupportedError(
            f"{where}: unknown format {value[:40]!r}; known: {', '.join(KNOWN_FORMATS)}"
        )
    return value


def _file_name(name: str, where: str) -> str:
    parts = name.split("/")
    if (
        not name.isprintable()
        or "\\" in name
        or any(not part or part.startswith(".") for part in parts)
    ):
        raise ContainerError(
            f"{where}: file {name[:60]!r} does not name a file inside the container"
        )
    return name


def _file(raw: Any, where: str) -> FileRecord:
    nbytes, sha256 = _field(raw, "bytes", int, where), _field(raw, "sha256", str, where)
    if not 0 <= nbytes < 1 << 62 or not _SHA256.fullmatch(sha256):
        raise ContainerError(f"{where}: bytes or sha256 is not what it should be")
    return FileRecord(nbytes, sha256)
