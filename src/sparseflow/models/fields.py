"""Checked reading of configuration fields; every family's configuration is made with these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparseflow.errors import ContainerError, UnsupportedError


def text_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text model's fields of config.json's content, nested under text_config or flat."""
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise ContainerError("config.json: text_config must be an object")
    return text


def size(text: Mapping[str, Any], name: str) -> int:
    """A count from 1 on. Raises ContainerError for anything else."""
    value = text.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise ContainerError(f"config.json: {name} is {value!r}; must be a positive integer")
    return value


def number(value: Any, name: str) -> float:
    """A positive number. Raises ContainerError for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
        raise ContainerError(f"config.json: {name} is {value!r}; must be a positive number")
    return float(value)


def check_divides(sizes: Mapping[str, int], part: str, whole: str) -> None:
    """Raises ContainerError unless `whole` is a multiple of `part`."""
    if sizes[whole] % sizes[part]:
        raise ContainerError(
            f"config.json: {whole} {sizes[whole]} is not a multiple of {part} {sizes[part]}"
        )


def check_top_k(sizes: Mapping[str, int]) -> None:
    """Raises ContainerError if a token would choose more experts than there are."""
    if sizes["num_experts_per_tok"] > sizes["num_experts"]:
        raise ContainerError("config.json: num_experts_per_tok is larger than num_experts")


def rotary_dim(text: Mapping[str, Any], head_dim: int, default_factor: float) -> int:
    """Channels of a head that rotate. Raises ContainerError if their number is not even."""
    factor = number(rotary_factor(text, default_factor), "partial_rotary_factor")
    return check_even(int(head_dim * factor), head_dim)


def rotary_factor(text: Mapping[str, Any], default: float) -> Any:
    """The share of a head's channels that rotate, as the configuration says it."""
    return rope_fields(text).get(
        "partial_rotary_factor", text.get("partial_rotary_factor", default)
    )


def check_even(channels: int, head_dim: int) -> int:
    """`channels`, if so many of `head_dim` can rotate in pairs. Raises ContainerError otherwise."""
    if channels % 2 or not 2 <= channels <= head_dim:
        raise ContainerError(
            f"config.json: {channels} rotary channels of head_dim {head_dim}; must be even"
        )
    return channels


def rope_type(text: Mapping[str, Any]) -> Any:
    """The kind of rotary embedding under either of its names."""
    rope = rope_fields(text)
    return rope.get("rope_type", rope.get("type", "default"))


def rope_fields(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotary settings, wherever a version of the format puts them; empty if there are none."""
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise ContainerError("config.json: rope_parameters must be an object")
    return rope


def refuse_others(values: Iterable[tuple[str, Any, Any]]) -> None:
    """(name, value, the one that is supported): raises UnsupportedError for the first that differs."""
    for name, value, supported in values:
        if value != supported:
            raise UnsupportedError(
                f"config.json: {name} {value!r} is not supported; only {supported!r}"
            )
