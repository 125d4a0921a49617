"""generation_config.json: the sampling that the publisher recommends, and the ids that end a
text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparseflow.config import SamplingParams
from sparseflow.errors import ConfigError, ContainerError

_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens")
_SAMPLING_ONLY = ("temperature", "top_k", "top_p", "min_p")


def read_generation_config(directory: Path) -> dict[str, Any]:
    """The file's content; empty if there is none. Raises ContainerError if it is not a JSON
    object.
    """
    path = directory / "generation_config.json"
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ContainerError(f"{path}: not JSON ({' '.join(str(error).split())})") from error
    if not isinstance(config, dict):
        raise ContainerError(f"{path}: must be a JSON object")
    return config


def read_stop_ids(
    generation_config: Mapping[str, Any], model_config: Mapping[str, Any]
) -> frozenset[int]:
    """All end-of-sequence ids: generation_config.json's, else config.json's; each may be an id, a
    list or null.

    Raises ContainerError if an id is not an integer.
    """
    for source, name in (
        (generation_config, "generation_config.json"),
        (model_config, "config.json"),
    ):
        value = source.get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise ContainerError(
                f"{name}: eos_token_id {value!r}; must be an integer or a list of them"
            )
        return frozenset(ids)
    return frozenset()


def read_sampling_defaults(generation_config: Mapping[str, Any]) -> SamplingParams:
    """Greedy if do_sample is false, or if nothing about sampling is said; fields that are absent
    or null are off.

    Raises ContainerError for a value out of range.
    """
    values: dict[str, Any] = {
        name: generation_config[name] for name in _FIELDS if generation_config.get(name) is not None
    }
    is_sampling = generation_config.get("do_sample")
    if is_sampling is None:
        is_sampling = any(name in values for name in _SAMPLING_ONLY)
    if not is_sampling:
        values = {name: value for name, value in values.items() if name not in _SAMPLING_ONLY}
        values["temperature"] = 0.0
    try:
        return SamplingParams(**values)
    except (ConfigError, TypeError) as error:
        raise ContainerError(f"generation_config.json: {error}") from error
