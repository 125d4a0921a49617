"""The files beside the weights that a container takes from a publisher's directory, for a GGUF file, which has metadata
instead; tokenizer files may come from elsewhere.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from sparseflow.checkpoint.gguf.checkpoint import GgufCheckpoint
from sparseflow.checkpoint.gguf.config import shortest_decimal
from sparseflow.checkpoint.json_file import parse_json_object, read_small_file
from sparseflow.checkpoint.model_config import CONFIG_NAME
from sparseflow.errors import ConfigError
from sparseflow.tokenizer.gguf_tokenizer import end_ids, tokenizer_files

GENERATION_NAME = "generation_config.json"
TEMPLATE_NAME = "chat_template.jinja"
TOKENIZER_NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    TEMPLATE_NAME,
    "chat_template.json",
    GENERATION_NAME,
)
MAX_BYTES = 64 << 20
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""general.sampling.* -> the field of generation_config.json."""


def gguf_files(checkpoint: GgufCheckpoint, tokenizer: Path | None = None) -> dict[str, bytes]:
    """Name -> content. `tokenizer`: a directory with tokenizer files, or a tokenizer.json, to take instead of what the
    metadata say; the metadata's template and sampling stay unless the directory has its own.

    Raises ConfigError if there is no tokenizer at `tokenizer`, UnsupportedError for a kind that is not read from
    metadata, CheckpointError for damaged ones.
    """
    metadata, where = checkpoint.metadata, str(checkpoint.path)
    if tokenizer is None:
        vocab_size = checkpoint.config["vocab_size"]
        files = tokenizer_files(metadata, checkpoint.read_array, vocab_size, where)
    else:
        files = _read_tokenizer(tokenizer)
        template = metadata.get("tokenizer.chat_template")
        if isinstance(template, str) and not _has_template(files):
            files[TEMPLATE_NAME] = template.encode()
    generation = _json(_generation_config(checkpoint))
    return {CONFIG_NAME: checkpoint.config_json, GENERATION_NAME: generation, **files}


def _generation_config(checkpoint: GgufCheckpoint) -> dict[str, Any]:
    metadata = checkpoint.metadata
    fields: dict[str, Any] = {}
    ids = end_ids(metadata, checkpoint.read_array)
    if ids:
        fields["eos_token_id"] = ids
    for key, name in _SAMPLING.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, float) and math.isfinite(value):
            fields[name] = shortest_decimal(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            fields[name] = value
    return fields


def _read_tokenizer(path: Path) -> dict[str, bytes]:
    if path.is_dir():
        names = [name for name in TOKENIZER_NAMES if (path / name).is_file()]
        found = {name: path / name for name in names}
    else:
        found = {"tokenizer.json": path} if path.is_file() else {}
    if "tokenizer.json" not in found:
        raise ConfigError(f"{path}: no tokenizer.json there; give the file, or its directory")
    files = {name: read_small_file(file, MAX_BYTES, ConfigError) for name, file in found.items()}
    import tokenizers

    try:
        tokenizers.Tokenizer.from_buffer(files["tokenizer.json"])
    except Exception as problem:  # the library raises bare Exception
        reason = " ".join(str(problem).split())[:200]
        raise ConfigError(f"{found['tokenizer.json']}: not a tokenizer ({reason})") from None
    return files


def _has_template(files: dict[str, bytes]) -> bool:
    if TEMPLATE_NAME in files or "chat_template.json" in files:
        return True
    settings = files.get("tokenizer_config.json", b"{}")
    return "chat_template" in parse_json_object(settings, "tokenizer_config.json", ConfigError)


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
