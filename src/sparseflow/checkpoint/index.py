"""Which shard holds which tensor: model.safetensors.index.json, or the one file model.safetensors."""

from __future__ import annotations

from pathlib import Path

from sparseflow.checkpoint.header import Header, read_header
from sparseflow.checkpoint.json_file import read_json_object
from sparseflow.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_INDEX_BYTES = 32 << 20


def holds_weights(directory: Path) -> bool:
    """Whether a directory has what a publisher's checkpoint has: an index, or the one file."""
    return any((directory / name).exists() for name in (INDEX_NAME, SINGLE_NAME))


def read_shard_headers(directory: Path) -> list[Header]:
    """The checked headers of all shards of the checkpoint in `directory`, by file name.

    Raises CheckpointError if there is no checkpoint, if the index names a file outside the
    directory or a missing one, or if index and shards do not tell the same.
    """
    index = directory / INDEX_NAME
    if not index.exists():
        if not (directory / SINGLE_NAME).exists():
            raise CheckpointError(
                f"{directory}: no {INDEX_NAME} and no {SINGLE_NAME}; not a checkpoint"
            )
        return [read_header(directory / SINGLE_NAME)]
    weight_map = _read_weight_map(index)
    headers = [read_header(directory / shard) for shard in _in_order(weight_map)]
    _check_agreement(index, weight_map, headers)
    return headers


def read_shard_names(index: Path) -> list[str]:
    """The shards that an index names, in order: plain file names. Raises CheckpointError as
    `read_shard_headers` does.
    """
    return _in_order(_read_weight_map(index))


def _in_order(weight_map: dict[str, str]) -> list[str]:
    return sorted(set(weight_map.values()))


def _read_weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json_object(index, MAX_INDEX_BYTES, CheckpointError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: no weight_map, or an empty one")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_plain_file_name(shard):
            raise CheckpointError(
                f"{index}: tensor {name!r} is said to lie in {shard!r}; only plain file names are"
                " followed"
            )
    return weight_map


def _is_plain_file_name(name: str) -> bool:
    """Shards lie beside their index. Their files may be symbolic links, as in a hub's cache; their
    names may not lead away.
    """
    return (
        name.endswith(".safetensors")
        and name.isprintable()
        and not set(name) & set("/\\:")
        and name[0] != "."
    )


def _check_agreement(index: Path, weight_map: dict[str, str], headers: list[Header]) -> None:
    found: dict[str, str] = {}
    for header in headers:
        for name in header.tensors:
            if name in found:
                raise CheckpointError(
                    f"{index.parent}: tensor {name!r} lies in {found[name]} and in"
                    f" {header.path.name}"
                )
            found[name] = header.path.name
    for name, shard in weight_map.items():
        if found.get(name) != shard:
            place = f"it lies in {found[name]}" if name in found else "no shard has it"
            raise CheckpointError(
                f"{index}: tensor {name!r} should lie in {shard}, but {place}; are shards swapped?"
            )
    for name, shard in found.items():
        if name not in weight_map:
            raise CheckpointError(f"{index}: tensor {name!r} of {shard} is not in the index")
