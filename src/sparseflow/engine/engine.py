"""A loaded model: weights, expert store, tokenizer; makes sequences and runs requests on them one
at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from sparseflow.config import EngineConfig, SamplingParams
from sparseflow.engine.generate import Observer, Request, generate
from sparseflow.engine.loading import Loaded, load
from sparseflow.engine.sampler import Sampler, check_finite
from sparseflow.engine.sequence import Sequence
from sparseflow.engine.stats import EngineStats, MemoryStats, PhaseClock
from sparseflow.engine.stopping import StopStrings
from sparseflow.engine.token import Token
from sparseflow.errors import BudgetError, ConfigError
from sparseflow.experts.store import ExpertStore
from sparseflow.layers.weights import Progress
from sparseflow.native import _ext
from sparseflow.tokenizer.chat_template import ChatTemplate
from sparseflow.tokenizer.detokenizer import create_detokenizer
from sparseflow.tokenizer.tokenizer import Tokenizer

LOGITS_CHUNK = 256
"""Tokens whose logits are held at a time: 1 MB a token with a large vocabulary."""


class Engine:
    """Made by `open`. A context manager; after `close` every method raises ConfigError.

    Requests may be interleaved in one thread: each has a sequence of its own. Not for use from
    several threads at once.
    """

    def __init__(self, loaded: Loaded, clock: PhaseClock, progress: Progress | None = None) -> None:
        """Use `open`. The engine owns what is loaded and closes it."""
        self._loaded = loaded
        self._clock = clock
        self._progress = progress
        self._prompt_tokens = 0
        self._new_tokens = 0
        self._is_closed = False
        self.config = loaded.config
        """The effective configuration: threads and ctx are what is used."""
        self.tokenizer: Tokenizer = loaded.tokenizer
        self.chat_template: ChatTemplate | None = loaded.chat_template
        self.generation_defaults: SamplingParams = loaded.generation_defaults
        """From generation_config.json."""
        self.vocab_size: int = loaded.model.vocab_size
        clock.enter("idle")

    @classmethod
    def open(
        cls,
        container: Path | str,
        config: EngineConfig | None = None,
        progress: Progress | None = None,
    ) -> Engine:
        """Loads the dense weights of a container and opens its experts.

        Without `cache_bytes` all experts are held in memory. Raises ContainerError,
        UnsupportedError, StorageError or BudgetError; nothing stays open then.
        """
        clock = PhaseClock()
        return cls(load(Path(container), config or EngineConfig(), progress), clock, progress)

    def close(self) -> None:
        """Saves the heat, frees the experts and closes the files. Idempotent."""
        self._is_closed = True
        self._loaded.opened.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def generate(
        self,
        prompt: str | SequenceOf[int],
        params: SamplingParams | None = None,
        *,
        hash_logits: bool = False,
        is_rendered: bool = False,
    ) -> Generator[Token, None, None]:
        """Yields tokens after a text or a list of ids; the iterator may be closed at any time.

        A text begins with the tokens that the tokenizer puts before every text, unless it
        `is_rendered`: a chat template wrote them.
        The prompt is checked at once, computed at the first token. Without `params`,
        `generation_defaults` hold. Raises ConfigError for a prompt that leaves no room in the
        context, or an id that the model does not have.
        """
        self._check_open()
        params = params or self.generation_defaults
        self._clock.enter("tokenize")
        try:
            ids = self._prompt_ids(prompt, is_rendered=is_rendered)
        finally:
            self._clock.enter("idle")
        return generate(self._request(ids, params, is_hashing=hash_logits), self._observer())

    def logits(self, ids: SequenceOf[int]) -> NDArray[np.float32]:
        """Logits [len(ids), vocab_size] after every id, teacher forced.

        Raises BudgetError if they do not fit into the available memory: use `iter_logits`.
        """
        from sparseflow.host.memory import available_memory_bytes

        needed, available = 4 * len(ids) * self.vocab_size, available_memory_bytes()
        if needed > available:
            raise BudgetError(
                f"logits of {len(ids)} tokens take {needed} bytes, available are {available}; use iter_logits",
                needed_bytes=needed,
                available_bytes=available,
            )
        logits = np.empty((len(ids), self.vocab_size), dtype=np.float32)
        position = 0
        for rows in self.iter_logits(ids):
            logits[position : position + len(rows)] = rows
            position += len(rows)
        return logits

    def iter_logits(
        self, ids: SequenceOf[int], chunk_tokens: int | None = None
    ) -> Iterator[NDArray[np.float32]]:
        """Yields logits [n, vocab_size] of consecutive chunks of ids, teacher forced; the last
        chunk may be shorter.
        """
        self._check_open()
        self._check_ids(ids)
        if len(ids) > self.config.ctx:
            raise ConfigError(
                f"{len(ids)} tokens do not fit into the context of {self.config.ctx}; use a longer ctx"
            )
        return self._teacher_forced(ids, chunk_tokens or min(self._prefill_chunk, LOGITS_CHUNK))

    def stats(self) -> EngineStats:
        """Counters since the engine opened."""
        loaded = self._loaded
        experts = loaded.store.stats()
        return EngineStats(
            prompt_tokens=self._prompt_tokens,
            new_tokens=self._new_tokens,
            times=self._clock.read(),
            memory=MemoryStats(
                dense_bytes=loaded.model.dense_bytes,
                expert_bytes=experts.resident_bytes,
                state_bytes=loaded.state_bytes,
            ),
            experts=experts,
            isa=loaded.runtime.isa,
            threads=loaded.runtime.threads,
            recipe=loaded.recipe,
            model_type=loaded.model_type,
            store=loaded.config.store,
            active_leases=loaded.store.active_leases,
            warnings=loaded.warnings,
        )

    @property
    def store(self) -> ExpertStore:
        """For those who measure: the counters and the observer of the expert store."""
        return self._loaded.store

    @property
    def runtime(self) -> _ext.Runtime:
        """For those who measure: the native clocks."""
        return self._loaded.runtime

    def new_sequence(self) -> Sequence:
        """An empty timeline of `config.ctx` tokens; its memory is touched only as it grows."""
        self._check_open()
        return Sequence(self._loaded.model, self.config.ctx)

    @property
    def _prefill_chunk(self) -> int:
        return self.config.prefill_chunk or self.config.ctx

    def _request(
        self, ids: SequenceOf[int], params: SamplingParams, *, is_hashing: bool
    ) -> Request:
        room = self.config.ctx - len(ids)
        sequence = self.new_sequence()
        sequence.append(ids)
        return Request(
            sequence=sequence,
            sampler=Sampler(
                self._loaded.runtime, params, min(self.tokenizer.size, self.vocab_size)
            ),
            detokenizer=create_detokenizer(self.tokenizer),
            stop_strings=StopStrings(params.stop),
            stop_ids=frozenset() if params.ignore_eos else self._loaded.stop_ids,
            max_new_tokens=min(params.max_new_tokens or room, room),
            prefill_chunk=self._prefill_chunk,
            is_hashing=is_hashing,
        )

    def _observer(self) -> Observer:
        return Observer(
            clock=self._clock,
            check_open=self._check_open,
            check_leases=self._check_leases,
            count_tokens=self._count_tokens,
            progress=self._progress,
        )

    def _prompt_ids(self, prompt: str | SequenceOf[int], *, is_rendered: bool) -> list[int]:
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, add_special_tokens=not is_rendered)
        else:
            ids = [int(i) for i in prompt]
        if not ids:
            if self.tokenizer.bos_id is None:
                raise ConfigError(
                    "the prompt is empty, and this model has no token to begin with; write something"
                )
            ids = [self.tokenizer.bos_id]
        self._check_ids(ids)
        if len(ids) >= self.config.ctx:
            raise ConfigError(
                f"the prompt has {len(ids)} tokens and the context {self.config.ctx}: no room for an answer; "
                "shorten the prompt or raise ctx"
            )
        return ids

    def _check_ids(self, ids: SequenceOf[int]) -> None:
        if len(ids) == 0:
            raise ConfigError("no token ids were given")
        low, high = min(ids), max(ids)
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            raise ConfigError(
                f"token id {wrong} is outside the model's vocabulary of {self.vocab_size}"
            )

    def _teacher_forced(
        self, ids: SequenceOf[int], chunk_tokens: int
    ) -> Iterator[NDArray[np.float32]]:
        sequence = self.new_sequence()
        sequence.append(ids)
        try:
            while sequence.position < len(ids):
                self._check_open()
                self._clock.enter("prefill")
                num_tokens = min(chunk_tokens, len(ids) - sequence.position)
                logits = sequence.forward(num_tokens, "all")
                assert logits is not None
                check_finite(self._loaded.runtime, logits, sequence.position)
                self._count_tokens(num_tokens, 0)
                self._check_leases()
                self._clock.enter("idle")
                yield logits
        finally:
            self._check_leases()
            self._clock.enter("idle")

    def _count_tokens(self, prompt_tokens: int, new_tokens: int) -> None:
        self._prompt_tokens += prompt_tokens
        self._new_tokens += new_tokens

    def _check_leases(self) -> None:
        leases = self._loaded.store.active_leases
        assert leases == 0, f"{leases} expert leases are still active between two steps"

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigError("the engine is closed")
