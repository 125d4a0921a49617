"""The chain of a synthetic checkpoint: greedy decoding must walk it, in this engine and in a peer."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparseflow.checkpoint.model_config import read_text_config
from sparseflow.errors import ConfigError, ContainerError

CHAIN_NAME = "chain.json"
MAX_CHAIN_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a generated id first differs from the chain."""

    who: str
    position: int
    """In the chain: the prompt's tokens count."""
    expected: int
    found: int | None
    """None: it ended early."""

    def __str__(self) -> str:
        found = "nothing" if self.found is None else str(self.found)
        return f"{self.who} differs at position {self.position}: {found} instead of {self.expected}"


def read_chain(container: Path) -> list[int]:
    """The ids of chain.json. Raises ConfigError if the container has none, ContainerError if it is damaged."""
    path = container / CHAIN_NAME
    if not path.is_file():
        raise ConfigError(f"{path}: no chain; only synthetic checkpoints have one")
    # As long as the vocabulary, so with more values than other JSON files may have.
    if path.stat().st_size > MAX_CHAIN_BYTES:
        raise ContainerError(f"{path}: longer than {MAX_CHAIN_BYTES} bytes")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as problem:
        raise ContainerError(f"{path}: not valid JSON ({problem})") from None
    ids = value.get("ids") if isinstance(value, dict) else None
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise ContainerError(f"{path}: ids is not a list of token ids")
    return ids


def prompt_ids(container: Path, length: int) -> list[int]:
    """A prompt of that length: the beginning of the chain if there is one, else seeded random ids.

    Raises ConfigError if the chain is shorter.
    """
    if (container / CHAIN_NAME).is_file():
        ids = read_chain(container)
        if length >= len(ids):
            raise ConfigError(
                f"a prompt of {length} tokens leaves nothing of a chain of {len(ids)}"
            )
        return ids[:length]
    vocab_size = int(read_text_config(container, ContainerError)["vocab_size"])
    return random.Random(0).choices(range(vocab_size), k=length)


def compare(
    who: str, chain: Sequence[int], prompt: int, found: Sequence[int], count: int
) -> Difference | None:
    """The first of `count` ids after the prompt's that is not the chain's; None if all are equal.

    Raises ConfigError if the chain is too short to tell.
    """
    expected = chain[prompt : prompt + count]
    if len(expected) < count:
        raise ConfigError(
            f"the chain has {len(chain)} ids; {count} after a prompt of {prompt} are too many"
        )
    for i, wanted in enumerate(expected):
        got = found[i] if i < len(found) else None
        if got != wanted:
            return Difference(who, prompt + i, wanted, got)
    return None
