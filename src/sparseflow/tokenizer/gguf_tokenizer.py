"""tokenizer.json and what goes with it, made of the metadata of a GGUF file.

Byte-level BPE (`tokenizer.ggml.model` gpt2) only; token types are those that the gguf package names (`TokenType`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sparseflow.errors import CheckpointError, UnsupportedError
from sparseflow.tokenizer.gguf_pre_tokenizers import (
    IGNORES_MERGES,
    NORMALIZED,
    PRE_TOKENIZERS,
    byte_level,
)

ReadArray = Callable[[str], list[Any]]
"""A metadata array by its key."""

_KEY = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
"""Token types that are treated apart; others are normal tokens (1) and bytes (6)."""
_WAY_OUT = "give the model's own tokenizer: --tokenizer DIR_OR_JSON"
_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>")
"""Control tokens that end a text whether the metadata say so or not: files name one id, publishers several."""


def tokenizer_files(
    metadata: Mapping[str, Any], read_array: ReadArray, vocab_size: int, where: str
) -> dict[str, bytes]:
    """Name -> content of tokenizer.json, tokenizer_config.json and, if there is one, chat_template.jinja.

    Raises UnsupportedError if the file has no tokenizer or one of a kind that is not known, CheckpointError for a
    damaged one; both begin with `where`.
    """
    _check_kind(metadata, where)
    words, types = _read_vocabulary(read_array, vocab_size, where)
    merges = _read_merges(read_array(_KEY + "merges"), where)
    document = _document(metadata, words, types, merges, where)
    raw = json.dumps(document, ensure_ascii=False).encode()
    _check_loads(raw, words, types, where)
    settings = (json.dumps(_settings(metadata, words, where), indent=2) + "\n").encode()
    files = {"tokenizer.json": raw, "tokenizer_config.json": settings}
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        files["chat_template.jinja"] = template.encode()
    return files


def _check_kind(metadata: Mapping[str, Any], where: str) -> None:
    """Before any of it is read."""
    model = metadata.get(_KEY + "model", "none")
    if model == "none":
        raise UnsupportedError(f"{where}: has no tokenizer; {_WAY_OUT}")
    if model != "gpt2":
        raise UnsupportedError(
            f"{where}: tokenizer {str(model)[:40]!r} is not read from GGUF, only gpt2; {_WAY_OUT}"
        )
    kind = str(metadata.get(_KEY + "pre"))
    if kind not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"{where}: pre-tokenizer {kind[:40]!r} is not known (known:"
            f" {', '.join(PRE_TOKENIZERS)}); {_WAY_OUT}"
        )


def end_ids(metadata: Mapping[str, Any], read_array: ReadArray) -> list[int]:
    """Ids that end a text: those that the metadata name, and control tokens that always do."""
    named = [metadata.get(f"{_KEY}{name}_token_id") for name in ("eos", "eot", "eom")]
    ids = [token_id for token_id in named if type(token_id) is int]
    if metadata.get(_KEY + "model") == "gpt2":
        words, types = read_array(_KEY + "tokens"), read_array(_KEY + "token_type")
        ids += [
            i
            for i, (word, kind) in enumerate(zip(words, types, strict=False))
            if kind == _CONTROL and word in _END_TOKENS
        ]
    return list(dict.fromkeys(ids))


def _read_vocabulary(
    read_array: ReadArray, vocab_size: int, where: str
) -> tuple[list[str], list[int]]:
    words, types = read_array(_KEY + "tokens"), read_array(_KEY + "token_type")
    if not words or len(words) > vocab_size:
        raise CheckpointError(f"{where}: {len(words)} tokens for an embedding of {vocab_size} rows")
    if len(types) != len(words) or not all(type(kind) is int for kind in types):
        raise CheckpointError(f"{where}: {len(types)} token types for {len(words)} tokens")
    if not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"{where}: tokenizer.ggml.tokens holds something else than text")
    used = [word for word, kind in zip(words, types, strict=True) if kind != _UNUSED]
    if len(set(used)) != len(used):
        raise CheckpointError(f"{where}: two tokens of the vocabulary are the same")
    return words, types


def _read_merges(merges: list[Any], where: str) -> list[list[str]]:
    pairs = [merge.split(" ") if isinstance(merge, str) else [] for merge in merges]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise CheckpointError(f"{where}: a merge of the tokenizer is not two tokens and a space")
    return pairs


def _document(
    metadata: Mapping[str, Any],
    words: list[str],
    types: list[int],
    merges: list[list[str]],
    where: str,
) -> dict[str, Any]:
    """tokenizer.json. Every token is in the vocabulary, also those that are matched before it, so that ids are the
    file's; unused ones (padding of the embedding) are not.
    """
    kind = metadata[_KEY + "pre"]
    tokens = list(zip(words, types, strict=True))
    vocabulary = {word: i for i, (word, token_type) in enumerate(tokens) if token_type != _UNUSED}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(i, word, is_special=token_type == _CONTROL)
            for i, (word, token_type) in enumerate(tokens)
            if token_type in (_CONTROL, _USER_DEFINED, _UNKNOWN)
        ],
        "normalizer": {"type": "NFC"} if kind in NORMALIZED else None,
        "pre_tokenizer": PRE_TOKENIZERS[kind],
        "post_processor": _post_processor(metadata, words, where),
        "decoder": byte_level(use_regex=False),
        "model": _model(vocabulary, merges, ignore_merges=kind in IGNORES_MERGES),
    }


def _added_token(token_id: int, word: str, *, is_special: bool) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": word,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": is_special,
    }


def _model(
    vocabulary: dict[str, int], merges: list[list[str]], *, ignore_merges: bool
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignore_merges,
        "vocab": vocabulary,
        "merges": merges,
    }


def _post_processor(
    metadata: Mapping[str, Any], words: list[str], where: str
) -> dict[str, Any] | None:
    """Puts the token that begins a text in front, if the metadata ask for it."""
    if metadata.get(_KEY + "add_bos_token") is not True:
        return None
    token_id = metadata.get(_KEY + "bos_token_id")
    word = _word(words, token_id, "bos", where)
    first = {"SpecialToken": {"id": word, "type_id": 0}}
    text = [{"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")]
    return {
        "type": "TemplateProcessing",
        "single": [first, text[0]],
        "pair": [first, *text],
        "special_tokens": {word: {"id": word, "ids": [token_id], "tokens": [word]}},
    }


def _settings(metadata: Mapping[str, Any], words: list[str], where: str) -> dict[str, Any]:
    """tokenizer_config.json."""
    settings: dict[str, Any] = {"add_bos_token": metadata.get(_KEY + "add_bos_token") is True}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        token_id = metadata.get(f"{_KEY}{key}_token_id")
        if token_id is not None:
            settings[name + "_token"] = _word(words, token_id, name, where)
    return settings


def _word(words: list[str], token_id: Any, name: str, where: str) -> str:
    if type(token_id) is not int or not 0 <= token_id < len(words):
        raise CheckpointError(
            f"{where}: the {name} token is {str(token_id)[:40]}; an id below {len(words)} was"
            " expected"
        )
    return words[token_id]


def _check_loads(raw: bytes, words: list[str], types: list[int], where: str) -> None:
    """The tokenizers library takes the file and gives every token its id."""
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_buffer(raw)
    except Exception as problem:  # the library raises bare Exception
        reason = " ".join(str(problem).split())[:200]
        raise CheckpointError(f"{where}: the metadata make no tokenizer ({reason})") from None
    for i, (word, kind) in enumerate(zip(words, types, strict=True)):
        if kind != _UNUSED and backend.token_to_id(word) != i:
            raise CheckpointError(f"{where}: token {i} of the vocabulary is taken for another")
