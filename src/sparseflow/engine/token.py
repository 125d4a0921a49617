"""What a generation yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token. The texts of all tokens, joined, are the whole answer."""

    id: int
    text: str
    """What may be shown now: whole characters that cannot belong to a stop string any more; often
    empty.
    """
    position: int
    """In the sequence; the first prompt token has position 0."""
    logits_sha256: str | None
    """Hash of the float32 logits that it was sampled from, if hashes were asked for."""
    finish_reason: FinishReason | None
    """On the last token only: `stop` for a stop id or stop string, `length` for max_new_tokens or
    the context.
    """
