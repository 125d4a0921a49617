"""The files of a model that was split: `NAME-00001-of-0000N.gguf`, with the metadata in the first."""

from __future__ import annotations

import re
from pathlib import Path

from sparseflow.checkpoint.gguf.header import GgufHeader, read_gguf_header
from sparseflow.errors import CheckpointError

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def read_headers(path: Path) -> list[GgufHeader]:
    """The checked headers of the model in the file at `path`, which may be any of several, in order.

    Raises CheckpointError if a file is missing or they do not belong together, and what reading a header raises.
    """
    first = read_gguf_header(path)
    count = first.metadata.get("split.count", 1)
    if type(count) is not int or count <= 1:
        return [first]
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise CheckpointError(
            f"{path}: is one of {count} files; all must be named NAME-00001-of-{count:05d}.gguf and"
            " lie in one directory"
        )
    headers = [
        read_gguf_header(path.with_name(f"{match[1]}-{number:05d}-of-{match[3]}.gguf"))
        for number in range(1, count + 1)
    ]
    _check_agreement(headers, count)
    return headers


def _check_agreement(headers: list[GgufHeader], count: int) -> None:
    seen: set[str] = set()
    for number, header in enumerate(headers):
        place = (header.metadata.get("split.no"), header.metadata.get("split.count"))
        if place != (number, count):
            raise CheckpointError(
                f"{header.path}: says it is file {place[0]} of {place[1]}, counted from 0, not"
                f" {number} of {count}; are files swapped?"
            )
        for name in header.tensors:
            if name in seen:
                raise CheckpointError(f"{header.path}: tensor {name!r} lies in another file too")
            seen.add(name)
    total = headers[0].metadata.get("split.tensors.count", len(seen))
    if total != len(seen):
        raise CheckpointError(
            f"{headers[0].path}: the files hold {len(seen)} tensors, but {total} were split"
        )
