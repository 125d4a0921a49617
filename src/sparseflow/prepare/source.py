"""What a container remembers of the checkpoint that it was made from, and which of its files it
takes over.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.companions import COMPANION_NAMES, MAX_COMPANION_BYTES
from sparseflow.checkpoint.json_file import read_small_file
from sparseflow.checkpoint.model_config import CONFIG_NAME, MAX_CONFIG_BYTES
from sparseflow.errors import CheckpointError, ConfigError


def source_identity(
    checkpoint: Checkpoint, generated: dict[str, bytes] | None = None
) -> dict[str, Any]:
    """Hashes of config.json, of every shard's header and of the files that were `generated`. The
    payload is not read, so it is not hashed.
    """
    files = generated or {}
    config = files.get(CONFIG_NAME)
    if config is None:
        config = read_small_file(checkpoint.path / CONFIG_NAME, MAX_CONFIG_BYTES, CheckpointError)
    identity = {
        "config_sha256": hashlib.sha256(config).hexdigest(),
        "shards": {
            header.path.name: {"bytes": header.file_bytes, "header_sha256": header.sha256}
            for header in checkpoint.headers
        },
    }
    others = {
        name: hashlib.sha256(data).hexdigest()
        for name, data in files.items()
        if name != CONFIG_NAME
    }
    return {**identity, "generated_sha256": others} if others else identity


def generated_files(checkpoint: Checkpoint, tokenizer: Path | None = None) -> dict[str, bytes]:
    """Name -> content of the files that a container needs and this checkpoint has no files of.

    `tokenizer`: where tokenizer files come from if not from a GGUF file's metadata. Raises
    ConfigError if it is given for another checkpoint, and what `gguf_files` raises.
    """
    if checkpoint.path.is_dir():
        if tokenizer is not None:
            raise ConfigError(
                f"{checkpoint.path}: has its own tokenizer; --tokenizer is for GGUF files"
            )
        return {}
    from sparseflow.checkpoint.gguf.checkpoint import GgufCheckpoint
    from sparseflow.prepare.gguf_files import gguf_files

    assert isinstance(checkpoint, GgufCheckpoint)
    return gguf_files(checkpoint, tokenizer)


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
