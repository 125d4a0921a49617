"""Presets are rows of EngineConfig's fields."""

from __future__ import annotations

import dataclasses

import pytest

from sparseflow.config import EngineConfig
from sparseflow.errors import ConfigError
from sparseflow.planning.presets import PRESETS, get_preset


@pytest.mark.parametrize("name", PRESETS)
def test_every_field_is_one_of_engine_config(name: str) -> None:
    config = EngineConfig(**get_preset(name).fields)
    names = {field.name for field in dataclasses.fields(EngineConfig)}
    assert set(get_preset(name).fields) <= names
    assert config != EngineConfig()


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="laptop-16gb"):
        get_preset("laptop")
