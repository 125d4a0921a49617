"""The model's tokenizer: text to token ids and back, from the files that a container copies from
its checkpoint.

It knows no model and no sampling; `size` is the number of ids that may be sampled, which the
model's vocabulary pads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from sparseflow.errors import ConfigError, ContainerError

_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer:
    """Immutable once made; may be used from several threads."""

    def __init__(self, backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> None:
        self._backend = backend
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.size: int = max(vocabulary.values(), default=-1) + 1
        """One more than the largest id; the model's vocabulary may be larger."""
        self.special_tokens: dict[str, str] = _special_tokens(settings)
        """bos_token, eos_token ... as chat templates name them; those that the checkpoint
        defines.
        """
        added = backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(
            i for i, token in added.items() if token.special
        )
        self.decoder_kind: str = _decoder_kind(backend)
        """`byte_level`, or `other`: how the streaming detokenizer may work."""

    @classmethod
    def open(cls, directory: Path) -> Tokenizer:
        """Reads tokenizer.json and, where it is present, tokenizer_config.json.

        Raises ContainerError if tokenizer.json is missing or is not a tokenizer.
        """
        path = directory / "tokenizer.json"
        try:
            backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ContainerError(f"{path}: missing; prepare the model again") from None
        except Exception as error:  # the library raises bare Exception
            raise ContainerError(f"{path}: not a tokenizer ({_one_line(error)})") from error
        backend.no_truncation()
        backend.no_padding()
        return cls(backend, read_tokenizer_settings(directory))

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`; special tokens written out in the text become their ids.

        Raises ConfigError for a lone surrogate.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"the text is not valid Unicode: {_one_line(error)}") from error
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD; ids beyond `size` give nothing."""
        text: str = self._backend.decode(
            [int(i) for i in ids], skip_special_tokens=skip_special_tokens
        )
        return text

    def token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of an id; None beyond the vocabulary."""
        spelling: str | None = self._backend.id_to_token(token_id)
        return spelling

    def find_id(self, token: str) -> int | None:
        """The id of a vocabulary entry such as `<|im_end|>`; None if there is no such entry."""
        found: int | None = self._backend.token_to_id(token)
        return found

    @property
    def bos_id(self) -> int | None:
        """The id that starts an empty sequence, if the checkpoint names one."""
        token = self.special_tokens.get("bos_token")
        return None if token is None else self.find_id(token)


def read_tokenizer_settings(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json as a dict; empty if the file is absent. Raises ContainerError if it is
    not an object.
    """
    path = directory / "tokenizer_config.json"
    if not path.exists():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ContainerError(f"{path}: not JSON ({_one_line(error)})") from error
    if not isinstance(settings, dict):
        raise ContainerError(f"{path}: must be a JSON object")
    return settings


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in _SPECIAL_NAMES:
        value = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _decoder_kind(backend: tokenizers.Tokenizer) -> str:
    # Its pickled state is its JSON; that of the whole tokenizer would be megabytes.
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    steps = decoder.get("decoders", [decoder])
    kinds = [step.get("type") for step in steps]
    return "byte_level" if kinds == ["ByteLevel"] else "other"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
