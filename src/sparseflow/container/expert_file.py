"""Opens the .sfi file of one layer and holds its header against the manifest."""

from __future__ import annotations

from pathlib import Path

from sparseflow.container.manifest import ExpertsRecord
from sparseflow.errors import ContainerError
from sparseflow.native import _ext


def open_expert_file(path: Path, layer: int, experts: ExpertsRecord) -> _ext.SfiFile:
    """The file, whose experts are not read yet.

    Raises ContainerError if it is damaged or describes another layer than the manifest, UnsupportedError, StorageError.
    """
    file = _ext.SfiFile(str(path))
    found = (
        file.layer,
        file.num_experts,
        file.hidden_size,
        file.moe_intermediate_size,
        file.format,
    )
    expected = (
        layer,
        experts.num_experts,
        experts.hidden_size,
        experts.moe_intermediate_size,
        experts.weight_format,
    )
    if found != expected:
        raise ContainerError(f"{path}: holds {found}; the manifest says {expected}")
    return file
