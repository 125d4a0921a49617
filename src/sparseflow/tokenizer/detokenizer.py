"""Text that streams out of token ids, whole characters only: joined, it equals the decoding of all
ids at once.
"""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod

from sparseflow.tokenizer.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_WINDOW = 8
"""Ids kept as left context by the windowed detokenizer; decoders look at most one token back."""


class Detokenizer(ABC):
    """One stream of ids. `push` returns what may be shown now; special tokens show nothing."""

    @abstractmethod
    def push(self, token_id: int) -> str:
        """Adds an id; returns the text that no later id can change, which may be empty."""

    @abstractmethod
    def finish(self) -> str:
        """Returns what was held back: an unfinished character becomes U+FFFD, as in a decoding of
        all ids.
        """


def create_detokenizer(tokenizer: Tokenizer) -> Detokenizer:
    """The detokenizer that fits the tokenizer's decoder."""
    if tokenizer.decoder_kind == "byte_level":
        return _ByteLevelDetokenizer(tokenizer)
    return _WindowedDetokenizer(tokenizer)


class _ByteLevelDetokenizer(Detokenizer):
    """Every token is a run of bytes, so an incremental UTF-8 decoder holds back exactly an
    unfinished character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._token_bytes(token_id))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)

    def _token_bytes(self, token_id: int) -> bytes:
        if token_id in self._tokenizer.special_ids:
            return b""
        token = self._tokenizer.token(token_id)
        if token is None:
            return b""
        # A token with a character outside the byte alphabet (an added token) stands for its own
        # text.
        if all(character in _BYTE_OF for character in token):
            return bytes(_BYTE_OF[character] for character in token)
        return token.encode("utf-8")


class _WindowedDetokenizer(Detokenizer):
    """Decodes a window of ids again and shows what is new; a run of byte tokens is held until it
    ends.

    Byte fallback turns a whole run into replacement characters when the run is not UTF-8, so
    nothing of a run is final before its end.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = []
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        if token_id in self._tokenizer.special_ids:
            return ""
        token = self._tokenizer.token(token_id)
        if token is None:
            return ""
        self._held.append(token_id)
        return "" if _BYTE_TOKEN.fullmatch(token) else self._show()

    def finish(self) -> str:
        return self._show()

    def _show(self) -> str:
        before = self._tokenizer.decode(self._shown)
        text = self._tokenizer.decode(self._shown + self._held)[len(before) :]
        self._shown = (self._shown + self._held)[-_WINDOW:]
        self._held = []
        return text


def _byte_alphabet() -> dict[str, int]:
    """Characters that stand for bytes in byte-level BPE: printable Latin-1 for itself, the rest
    from U+0100 up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
