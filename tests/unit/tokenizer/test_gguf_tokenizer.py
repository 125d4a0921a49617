"""Metadata of a GGUF file become a tokenizer.json that gives every token the file's id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf_bytes import TOKENIZER, WORDS

from sparseflow.errors import CheckpointError, SparseFlowError, UnsupportedError
from sparseflow.tokenizer.gguf_pre_tokenizers import PRE_TOKENIZERS
from sparseflow.tokenizer.gguf_tokenizer import end_ids, tokenizer_files
from sparseflow.tokenizer.tokenizer import Tokenizer

ALPHABET = [*range(33, 127), *range(161, 173), *range(174, 256)]


def byte_words() -> list[str]:
    """The 256 bytes as byte-level vocabularies spell them."""
    spelled = {byte: chr(byte) for byte in ALPHABET}
    others = (byte for byte in range(256) if byte not in spelled)
    spelled |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [spelled[byte] for byte in range(256)]


def make(metadata: dict[str, Any], directory: Path, vocab_size: int = 400) -> Tokenizer:
    files = tokenizer_files(metadata, metadata.__getitem__, vocab_size, "a.gguf")
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return Tokenizer.open(directory)


def byte_tokenizer(kind: str, directory: Path, merges: tuple[str, ...] = ()) -> Tokenizer:
    """One token a byte, and the merges; ids are bytes."""
    words = byte_words() + [merge.replace(" ", "") for merge in merges] + ["<|end|>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [1] * (len(words) - 1) + [3],
        "tokenizer.ggml.merges": list(merges),
    }
    return make(metadata, directory)


TEXTS = (
    "",
    "a  b\t\r\n\r\n   c",
    "I'll don't WE'RE",
    "x = 1234567890.5e-10;",
    "你好、世界 日本語 한국어",
    "🚀👩‍👩‍👧‍👦",
    "हिन्दी ไทย العربية",
    "nul \x00 and \u2003\u00a0 spaces",
)


@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
def test_without_merges_text_is_its_bytes_and_comes_back(kind: str, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(kind, tmp_path)
    assert tokenizer.decoder_kind == "byte_level"
    for text in TEXTS:
        assert tokenizer.encode(text) == list(text.encode())
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("a<|end|>") == [97, 256]


@pytest.mark.parametrize(
    ("kind", "count"), [("gpt-2", 2), ("llama-bpe", 3), ("qwen2", 4), ("qwen35", 4), ("smollm", 4)]
)
def test_digits_are_grouped_as_the_kind_says(kind: str, count: int, tmp_path: Path) -> None:
    """Of 1111, gpt-2 makes one word, llama-bpe one of three digits and one, the others four."""
    tokenizer = byte_tokenizer(kind, tmp_path, ("1 1", "11 11"))
    expected = {2: [257], 3: [256, 49, 49], 4: [49] * 4}
    assert tokenizer.encode("1111") == expected[count]


def test_marks_belong_to_words_in_qwen35_alone(tmp_path: Path) -> None:
    """The vowel sign U+093F after a letter: one word of qwen35, two of qwen2."""
    letter, sign = ("".join(byte_words()[b] for b in text.encode()) for text in ("न", "ि"))
    merges = (f"{letter[-1]} {sign[0]}",)
    assert 256 in byte_tokenizer("qwen35", tmp_path, merges).encode("नि")
    assert 256 not in byte_tokenizer("qwen2", tmp_path, merges).encode("नि")


def test_qwen_composes_characters_first(tmp_path: Path) -> None:
    for kind in ("qwen2", "qwen35"):
        assert byte_tokenizer(kind, tmp_path).encode("e\u0301") == list("é".encode())
    assert byte_tokenizer("gpt-2", tmp_path).encode("e\u0301") == list("e\u0301".encode())


def test_unused_tokens_are_no_part_of_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = make(TOKENIZER, tmp_path)
    assert tokenizer.size == len(WORDS)
    assert tokenizer.find_id("[PAD9]") is None
    assert [tokenizer.find_id(word) for word in WORDS] == list(range(len(WORDS)))


def test_control_tokens_are_special_and_user_defined_ones_are_not(tmp_path: Path) -> None:
    tokenizer = make(TOKENIZER, tmp_path)
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.encode("a<think>b") == [3, 8, 4]
    assert tokenizer.decode([3, 8, 2]) == "a<think>"


def test_a_text_begins_with_the_token_that_the_metadata_ask_for(tmp_path: Path) -> None:
    bos = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.add_bos_token": True}
    tokenizer = make({**TOKENIZER, **bos}, tmp_path)
    assert tokenizer.encode("ab", add_special_tokens=True) == [1, 5]
    assert tokenizer.encode("ab") == [5]
    assert tokenizer.bos_id == 1
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["add_bos_token"] is True


def test_texts_end_at_named_ids_and_at_known_control_tokens() -> None:
    assert end_ids(TOKENIZER, TOKENIZER.__getitem__) == [2, 0]
    named = {**TOKENIZER, "tokenizer.ggml.eot_token_id": 7}
    assert end_ids(named, named.__getitem__) == [2, 7, 0]
    assert end_ids({"tokenizer.ggml.model": "llama"}, TOKENIZER.__getitem__) == []


WRONG: dict[str, tuple[dict[str, Any], type[SparseFlowError], str]] = {
    "none": ({"tokenizer.ggml.model": "none"}, UnsupportedError, "has no tokenizer; give"),
    "pre": ({"tokenizer.ggml.pre": None}, UnsupportedError, "pre-tokenizer 'None' is not known"),
    "long": (
        {"tokenizer.ggml.tokens": [*TOKENIZER["tokenizer.ggml.tokens"], *map(str, range(400))]},
        CheckpointError,
        "410 tokens for an embedding of 400 rows",
    ),
    "types": ({"tokenizer.ggml.token_type": [1]}, CheckpointError, "1 token types for 10 tokens"),
    "same": (
        {"tokenizer.ggml.tokens": ["a"] * 10},
        CheckpointError,
        "two tokens of the vocabulary are the same",
    ),
    "numbers": ({"tokenizer.ggml.tokens": [1] * 10}, CheckpointError, "something else than text"),
    "merge": ({"tokenizer.ggml.merges": ["ab"]}, CheckpointError, "not two tokens and a space"),
    "merge_of_unknown": (
        {"tokenizer.ggml.merges": ["q r"]},
        CheckpointError,
        "the metadata make no tokenizer",
    ),
    "eos": ({"tokenizer.ggml.eos_token_id": 10}, CheckpointError, "the eos token is 10"),
    "bos": ({"tokenizer.ggml.add_bos_token": True}, CheckpointError, "the bos token is None"),
}


@pytest.mark.parametrize("name", WRONG)
def test_damaged_or_unknown_metadata_are_refused(name: str, tmp_path: Path) -> None:
    changes, kind, phrase = WRONG[name]
    with pytest.raises(kind) as caught:
        make({**TOKENIZER, **changes}, tmp_path)
    assert phrase in str(caught.value)
    assert str(caught.value).startswith("a.gguf")
    assert "\n" not in str(caught.value)
