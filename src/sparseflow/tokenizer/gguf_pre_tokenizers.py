"""How each `tokenizer.ggml.pre` splits text before byte-pair merges, as a part of tokenizer.json.

Sources: the published tokenizer.json or split pattern of a model of each kind; tests compare ids where such a tokenizer
can be had.
"""

from __future__ import annotations

from typing import Any

_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _ENDING + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+" + _PUNCTUATION
_QWEN35 = _ENDING + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+" + _PUNCTUATION
_LLAMA3 = _ENDING + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + _PUNCTUATION

Steps = dict[str, Any]


def byte_level(*, use_regex: bool) -> Steps:
    """Bytes as printable characters; with `use_regex`, words are split first as GPT-2 does."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": use_regex,
    }


def _sequence(first: Steps, *, use_regex: bool) -> Steps:
    return {"type": "Sequence", "pretokenizers": [first, byte_level(use_regex=use_regex)]}


def _split(pattern: str) -> Steps:
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return _sequence(split, use_regex=False)


PRE_TOKENIZERS: dict[str, Steps] = {
    "gpt-2": byte_level(use_regex=True),
    "llama-bpe": _split(_LLAMA3),
    "qwen2": _split(_QWEN2),
    "qwen35": _split(_QWEN35),
    "smollm": _sequence({"type": "Digits", "individual_digits": True}, use_regex=True),
}
NORMALIZED = ("qwen2", "qwen35")
"""Kinds that compose characters (NFC) first."""
IGNORES_MERGES = ("llama-bpe",)
"""Kinds in which a word that is in the vocabulary is one token, whatever the merges would make of it."""
