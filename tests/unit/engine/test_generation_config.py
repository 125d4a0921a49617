from __future__ import annotations

from pathlib import Path

import pytest

from sparseflow.config import SamplingParams
from sparseflow.engine.generation_config import (
    read_generation_config,
    read_sampling_defaults,
    read_stop_ids,
)
from sparseflow.errors import ContainerError


def test_all_stop_ids_count() -> None:
    assert read_stop_ids({"eos_token_id": [7, 9]}, {"eos_token_id": 3}) == {7, 9}
    assert read_stop_ids({"eos_token_id": 0}, {}) == {0}


def test_the_model_config_fills_in() -> None:
    assert read_stop_ids({}, {"eos_token_id": 3}) == {3}
    assert read_stop_ids({"eos_token_id": None}, {}) == frozenset()


@pytest.mark.parametrize("value", ["2", [1, "2"], 1.5, True, {"a": 1}])
def test_stop_ids_must_be_integers(value: object) -> None:
    with pytest.raises(ContainerError, match="eos_token_id"):
        read_stop_ids({"eos_token_id": value}, {})


def test_recommended_sampling_is_used() -> None:
    config = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "repetition_penalty": None,
    }
    assert read_sampling_defaults(config) == SamplingParams(temperature=0.6, top_k=20, top_p=0.95)


def test_no_sampling_is_greedy() -> None:
    greedy = SamplingParams(temperature=0.0)
    assert read_sampling_defaults({"do_sample": False, "temperature": 0.6, "top_k": 20}) == greedy
    assert read_sampling_defaults({}) == greedy


def test_sampling_may_be_implied() -> None:
    assert read_sampling_defaults({"temperature": 0.5}).temperature == 0.5


@pytest.mark.parametrize("field", [{"temperature": -1}, {"temperature": "hot"}, {"top_p": 2}])
def test_values_out_of_range_are_a_container_error(field: dict[str, object]) -> None:
    with pytest.raises(ContainerError, match=r"generation_config\.json"):
        read_sampling_defaults({"do_sample": True, **field})


@pytest.mark.parametrize("content", ["[]", "{", "\x00"])
def test_a_damaged_file_is_a_container_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(ContainerError, match=r"generation_config\.json"):
        read_generation_config(tmp_path)


def test_the_file_is_optional(tmp_path: Path) -> None:
    assert read_generation_config(tmp_path) == {}
