"""The chain: prompts from it, the first difference to it, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparseflow.bench.chain import compare, prompt_ids, read_chain
from sparseflow.checkpoint.model_config import read_text_config
from sparseflow.errors import ConfigError, ContainerError

CHAIN = [7, 3, 9, 1, 4]


def test_equal_ids_are_no_difference_and_the_first_other_one_is_named() -> None:
    assert compare("peer", CHAIN, 2, [9, 1, 4], 3) is None
    difference = compare("peer", CHAIN, 2, [9, 8, 4], 3)
    assert str(difference) == "peer differs at position 3: 8 instead of 1"


def test_text_that_ends_early_is_a_difference() -> None:
    difference = compare("peer", CHAIN, 2, [9], 3)
    assert difference is not None
    assert difference.found is None
    assert "nothing instead of 1" in str(difference)


def test_chain_that_is_too_short_is_refused() -> None:
    with pytest.raises(ConfigError, match="too many"):
        compare("peer", CHAIN, 3, [], 3)


def test_prompt_is_the_beginning_of_the_chain(tmp_path: Path) -> None:
    (tmp_path / "chain.json").write_text(json.dumps({"ids": CHAIN, "decided": [2]}))
    assert prompt_ids(tmp_path, 3) == CHAIN[:3]
    with pytest.raises(ConfigError, match="leaves nothing"):
        prompt_ids(tmp_path, 5)


def test_prompt_without_a_chain_is_seeded_and_within_the_vocabulary(tiny_moe: Path) -> None:
    ids = prompt_ids(tiny_moe, 50)
    vocab_size = read_text_config(tiny_moe, ContainerError)["vocab_size"]
    assert ids == prompt_ids(tiny_moe, 50)
    assert len(set(ids)) > 1
    assert all(0 <= i < vocab_size for i in ids)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"ids": [-1]}', '{"ids": [true]}', "{", '{"ids": []}']
)
def test_damaged_chain_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "chain.json").write_text(text)
    with pytest.raises(ContainerError):
        read_chain(tmp_path)


def test_container_without_a_chain_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no chain"):
        read_chain(tmp_path)
