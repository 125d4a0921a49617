from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sparseflow.errors import ConfigError, ContainerError
from sparseflow.tokenizer.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "golden" / "tiny"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.open(TINY)


def test_text_comes_back(tokenizer: Tokenizer) -> None:
    text = "The king said: «naïve» 東京 🦊\n\n\ttabs"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_in_the_text_become_their_ids(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>user")
    assert ids[0] == tokenizer.find_id("<|im_start|>") == 1


def test_special_tokens_are_skipped_unless_asked_for(tokenizer: Tokenizer) -> None:
    ids = [1, *tokenizer.encode("hi"), 2]
    assert tokenizer.decode(ids) == "hi"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>hi<|im_end|>"


def test_size_counts_added_tokens_and_merges(tokenizer: Tokenizer) -> None:
    assert tokenizer.size == 290
    assert tokenizer.token(289) is not None
    assert tokenizer.token(290) is None


def test_names_of_special_tokens_come_from_the_settings(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert tokenizer.bos_id == 0
    assert tokenizer.special_ids == {0, 1, 2}


def test_added_token_objects_are_understood(tmp_path: Path) -> None:
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    settings = {"bos_token": {"content": "<|im_start|>", "special": True}, "eos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.open(tmp_path)
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>"}
    assert tokenizer.bos_id == 1


def test_settings_are_optional(tmp_path: Path) -> None:
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    assert Tokenizer.open(tmp_path).bos_id is None


def test_lone_surrogate_is_a_config_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="not valid Unicode"):
        tokenizer.encode("\ud800")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}', '{"version": "1.0"}'])
def test_a_damaged_tokenizer_is_a_container_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ContainerError, match="not a tokenizer") as caught:
        Tokenizer.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_tokenizer_is_a_container_error(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="missing"):
        Tokenizer.open(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{", "3"])
def test_damaged_settings_are_a_container_error(tmp_path: Path, content: str) -> None:
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ContainerError, match=r"tokenizer_config\.json"):
        Tokenizer.open(tmp_path)
