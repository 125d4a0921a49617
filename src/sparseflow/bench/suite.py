"""The suite file: containers, peers and data that `--report targets` measures with. TOML or JSON, keys are optional."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sparseflow.errors import ConfigError

_COUNTS = ("prompt", "new", "warm_up", "pairs", "threads", "search_new")


@dataclass(frozen=True, slots=True)
class Suite:
    """Paths and sizes. What is missing is reported as not measured."""

    int8: Path | None = None
    """Containers of the slice, in each recipe."""
    int4: Path | None = None
    int4_small: Path | None = None
    full: Path | None = None
    """Container of the full geometry, int4; or as many layers as there is room for."""
    peer: Path | None = None
    """A native build of llama.cpp."""
    peer_avx2: Path | None = None
    peer_driver: Path | None = None
    peer_q8: Path | None = None
    """The slice's weights as GGUF."""
    peer_q4: Path | None = None
    peer_full: Path | None = None
    routes: Path | None = None
    """An .npz file of recorded routes, for `replay`."""
    checkpoint: Path | None = None
    """Of the slice, for the speed of `prepare`."""
    prompt: int = 512
    new: int = 64
    warm_up: int = 64
    pairs: int = 3
    threads: int | None = None
    search_new: int = 16
    """Tokens of each trial of the search for the peer's best setting."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            is_count = type(value) is int and value >= (0 if name == "warm_up" else 1)
            if value is not None and not is_count:
                raise ConfigError(f"suite: {name} is {value!r}; must be a count")


def read_suite(path: Path) -> Suite:
    """The suite in a .toml or .json file; relative paths are relative to it. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid {path.suffix[1:].upper()} ({error})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a table of settings was expected")
    return merge(Suite(), values, path.parent)


def merge(suite: Suite, values: Mapping[str, Any], base: Path | None = None) -> Suite:
    """The suite with some settings replaced; None values do not replace. Raises ConfigError for unknown names."""
    names = {field.name for field in fields(Suite)}
    unknown = sorted(set(values) - names)
    if unknown:
        raise ConfigError(
            f"suite: unknown setting {unknown[0]!r}; known: {', '.join(sorted(names))}"
        )
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            continue
        if name in _COUNTS:
            changes[name] = value
        elif isinstance(value, str | Path):
            changes[name] = (base or Path()) / Path(value).expanduser()
        else:
            raise ConfigError(f"suite: {name} is {value!r}; must be a path")
    return replace(suite, **changes)
