"""The step loop: prefill in chunks, then one token after another until something ends the text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparseflow.engine.sampler import Sampler
from sparseflow.engine.sequence import Sequence
from sparseflow.engine.stats import PhaseClock
from sparseflow.engine.stopping import StopStrings
from sparseflow.engine.token import FinishReason, Token
from sparseflow.layers.weights import Progress
from sparseflow.models.base import LayerProgress
from sparseflow.tokenizer.detokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class Request:
    """One generation, with everything that it needs already made."""

    sequence: Sequence
    """Holds the whole prompt; the model may have seen a beginning of it."""
    sampler: Sampler
    detokenizer: Detokenizer
    stop_strings: StopStrings
    stop_ids: frozenset[int]
    max_new_tokens: int
    prefill_chunk: int
    is_hashing: bool


@dataclass(frozen=True, slots=True)
class Observer:
    """Who is told about the steps: the clock, the progress bar, the checks around each."""

    clock: PhaseClock
    check_open: Callable[[], None]
    """Raises ConfigError if the engine was closed since the last step."""
    check_leases: Callable[[], None]
    count_tokens: Callable[[int, int], None]
    """(prompt tokens seen, new tokens)"""
    progress: Progress | None


def generate(request: Request, observer: Observer) -> Generator[Token, None, None]:
    """Yields every sampled token, the one that ends the text included.

    May be closed at any token. An exception ends it; whatever happens, no lease is left.
    """
    num_prompt = len(request.sequence.ids)
    try:
        logits = _prefill(request, observer)
        observer.clock.enter("decode")
        for count in range(1, request.max_new_tokens + 1):
            token = _sample(request, logits, num_prompt, is_last=count == request.max_new_tokens)
            observer.check_leases()
            observer.count_tokens(0, 1)
            observer.clock.enter("idle")
            yield token
            observer.clock.enter("decode")
            if token.finish_reason is not None:
                return
            observer.check_open()
            logits = _forward_last(request.sequence, 1)
    finally:
        observer.check_leases()
        observer.clock.enter("idle")


def _prefill(request: Request, observer: Observer) -> NDArray[np.float32]:
    """Shows the model the prompt; returns the logits [vocab_size] after its last token."""
    observer.check_open()
    observer.clock.enter("prefill")
    sequence = request.sequence
    total = len(sequence.ids)
    while total - sequence.position > request.prefill_chunk:
        on_layer = _prefill_progress(observer.progress, sequence, request.prefill_chunk)
        sequence.forward(request.prefill_chunk, "none", on_layer)
        observer.count_tokens(request.prefill_chunk, 0)
        observer.check_leases()
    num_last = total - sequence.position
    on_layer = _prefill_progress(observer.progress, sequence, num_last)
    logits = _forward_last(sequence, num_last, on_layer)
    observer.count_tokens(num_last, 0)
    return logits


def _prefill_progress(
    progress: Progress | None, sequence: Sequence, num_tokens: int
) -> LayerProgress | None:
    """Reports the next num_tokens of the prompt layer by layer, as a share of its tokens."""
    if progress is None:
        return None
    before, total = sequence.position, len(sequence.ids)
    return lambda done, layers: progress("prefill", before + num_tokens * done // layers, total)


def _forward_last(
    sequence: Sequence, num_tokens: int, on_layer: LayerProgress | None = None
) -> NDArray[np.float32]:
    logits = sequence.forward(num_tokens, "last", on_layer)
    assert logits is not None
    row: NDArray[np.float32] = logits[0]
    return row


def _sample(
    request: Request, logits: NDArray[np.float32], num_prompt: int, *, is_last: bool
) -> Token:
    sequence = request.sequence
    position = len(sequence.ids)
    token_id = request.sampler.sample(logits, sequence.ids, num_prompt)
    sequence.append([token_id])
    text, reason = _text_of(request, token_id, is_last=is_last)
    return Token(
        id=token_id,
        text=text,
        position=position,
        logits_sha256=hash_logits(logits) if request.is_hashing else None,
        finish_reason=reason,
    )


def _text_of(request: Request, token_id: int, *, is_last: bool) -> tuple[str, FinishReason | None]:
    """What may be shown after this token, and whether the text ends with it. A stop id shows
    nothing itself.
    """
    stops = request.stop_strings
    is_stop_id = token_id in request.stop_ids
    text = "" if is_stop_id else stops.push(request.detokenizer.push(token_id))
    if stops.is_stopped:
        return text, "stop"
    if not is_stop_id and not is_last:
        return text, None
    text += stops.push(request.detokenizer.finish()) + stops.finish()
    return text, "stop" if is_stop_id or stops.is_stopped else "length"


def hash_logits(logits: NDArray[np.float32]) -> str:
    """SHA-256, in hex, of the little-endian float32 values."""
    return hashlib.sha256(np.ascontiguousarray(logits, dtype="<f4").data).hexdigest()
