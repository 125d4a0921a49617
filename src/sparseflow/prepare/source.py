"""What a container remembers of the checkpoint that it was made from, and which of its files it
takes over.
"""

from __future__ import annotations

import hashlib
from typing import Any

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.companions import COMPANION_NAMES, MAX_COMPANION_BYTES
from sparseflow.checkpoint.json_file import read_small_file
from sparseflow.checkpoint.model_config import CONFIG_NAME, MAX_CONFIG_BYTES
from sparseflow.errors import CheckpointError


def source_identity(checkpoint: Checkpoint) -> dict[str, Any]:
    """Hashes of config.json and of every shard's header. The payload is not read, so it is not
    hashed.
    """
    config = read_small_file(checkpoint.path / CONFIG_NAME, MAX_CONFIG_BYTES, CheckpointError)
    return {
        "config_sha256": hashlib.sha256(config).hexdigest(),
        "shards": {
            header.path.name: {"bytes": header.file_bytes, "header_sha256": header.sha256}
            for header in checkpoint.headers
        },
    }


def copied_files(checkpoint: Checkpoint) -> dict[str, int]:
    """The files that the container takes over, with their sizes. Raises CheckpointError for one of unlikely size."""
    sizes = {}
    for name in COMPANION_NAMES:
        path = checkpoint.path / name
        if path.is_file():
            sizes[name] = path.stat().st_size
            if sizes[name] > MAX_COMPANION_BYTES:
                raise CheckpointError(
                    f"{path}: {sizes[name]} bytes; at most {MAX_COMPANION_BYTES} are taken over"
                )
    return sizes
