"""Opens whatever a model's weights come in: a directory of safetensors, or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.index import holds_weights
from sparseflow.errors import CheckpointError

GGUF_SUFFIX = ".gguf"


def is_gguf(path: Path) -> bool:
    """Whether `path` is called as a GGUF file is."""
    return path.suffix.lower() == GGUF_SUFFIX and not path.is_dir()


def open_checkpoint(source: Path) -> Checkpoint:
    """The checkpoint in a directory or a GGUF file, which may be one of several. Raises what its `open` raises."""
    if is_gguf(source):
        from sparseflow.checkpoint.gguf.checkpoint import GgufCheckpoint

        return GgufCheckpoint.open(source)
    if source.is_dir() and not holds_weights(source):
        files = sorted(path.name for path in source.glob("*" + GGUF_SUFFIX))
        if files:
            raise CheckpointError(
                f"{source}: holds GGUF files; give the file itself: {source / files[0]}"
            )
    return Checkpoint.open(source)
