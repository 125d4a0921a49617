"""JSON files from strangers: bounded in bytes, depth and number of values, no duplicate keys, no
NaN.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from sparseflow.errors import SparseFlowError, StorageError

MAX_VALUES = 200_000
"""Commas, brackets and braces in one file: bounds the memory that parsing takes to some tens of MB.
"""


def parse_json_object(raw: bytes, where: str, error: type[SparseFlowError]) -> dict[str, Any]:
    """The object that `raw` holds. Raises `error`, naming `where`, if it is not one or is a bomb."""
    if sum(raw.count(mark) for mark in (b"[", b"{", b",")) > MAX_VALUES:
        raise error(
            f"{where}: more than {MAX_VALUES} JSON values; the file is not what it should be"
        )
    try:
        value = json.loads(raw, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise error(f"{where}: JSON nested too deeply") from None
    except ValueError as problem:
        raise error(f"{where}: not valid JSON ({problem})") from None
    if not isinstance(value, dict):
        raise error(f"{where}: a JSON object was expected, not {type(value).__name__}")
    return value


def read_json_object(path: Path, limit_bytes: int, error: type[SparseFlowError]) -> dict[str, Any]:
    """The JSON object in the file at `path`, at most `limit_bytes` long.

    Raises `error` if the file is missing, too long or not a JSON object, StorageError if it cannot
    be read.
    """
    return parse_json_object(read_small_file(path, limit_bytes, error), str(path), error)


def read_small_file(path: Path, limit_bytes: int, error: type[SparseFlowError]) -> bytes:
    """All bytes of a file that should be at most `limit_bytes` long; errors as `read_json_object`."""
    try:
        with path.open("rb") as file:
            raw = file.read(limit_bytes + 1)
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except OSError as problem:
        raise StorageError(
            f"{path}: cannot read: {problem.strerror}",
            path=str(path),
            offset=0,
            errno=problem.errno,
        ) from None
    if len(raw) > limit_bytes:
        raise error(f"{path}: longer than the {limit_bytes} bytes that such a file may have")
    return raw


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"duplicate key {key!r}")
            seen.add(key)
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
