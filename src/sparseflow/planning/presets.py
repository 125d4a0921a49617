"""Configurations with a name: rows of EngineConfig's fields. What is given beside a preset wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparseflow.errors import ConfigError

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Preset:
    """One row."""

    name: str
    summary: str
    fields: Mapping[str, Any]
    """Of EngineConfig; the others keep their defaults."""


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("stable", "every expert in memory, or refused: speed does not depend on the disk", {
            "store": "resident",
        }),
        Preset("low-memory", "3 GiB in all, a context of 4,096: slow, and leaves room for everything else", {
            "ram_bytes": 3 * GIB,
            "ctx": 4096,
        }),
        Preset("laptop-16gb", "10 GiB in all: beside a browser on a machine with 16 GB", {
            "ram_bytes": 10 * GIB,
        }),
        Preset("laptop-8gb", "5 GiB in all, a context of 4,096: on a machine with 8 GB", {
            "ram_bytes": 5 * GIB,
            "ctx": 4096,
        }),
    )
}  # fmt: skip


def get_preset(name: str) -> Preset:
    """The preset of that name. Raises ConfigError naming the known ones."""
    preset = PRESETS.get(name)
    if preset is None:
        raise ConfigError(f"unknown preset {name!r}; known: {', '.join(PRESETS)}")
    return preset
