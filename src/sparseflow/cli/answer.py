"""One answer of `run`: opens the engine, streams the text, and remembers what the statistics and the report need."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sparseflow.cli.stopwatch import Stopwatch
from sparseflow.cli.thinking import ThinkingFilter
from sparseflow.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from sparseflow.cli.console import ProgressBars
    from sparseflow.config import EngineConfig, SamplingParams
    from sparseflow.engine.engine import Engine

CONTINUATION_TOKENS = 256
"""Length of a continued text if nothing else says it: a model without a chat template seldom ends by itself."""


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked, and how."""

    text: str
    system: str | None = None
    is_raw: bool = False
    thinking: str = "on"
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of SamplingParams that the command line gave; the others are the model's defaults."""

    def is_rendered(self, engine: Engine) -> bool:
        """Whether the text goes through a chat template."""
        return not self.is_raw and engine.chat_template is not None

    def render(self, engine: Engine) -> str:
        """The text that the model reads: through its chat template if it has one."""
        template = engine.chat_template
        if self.is_raw or template is None:
            return self.text if self.system is None else f"{self.system}\n\n{self.text}"
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages.append({"role": "user", "content": self.text})
        return template.render(messages, enable_thinking=self.thinking != "off")

    def params(self, engine: Engine) -> SamplingParams:
        params = replace(engine.generation_defaults, **self.sampling)
        if params.max_new_tokens is None and (self.is_raw or engine.chat_template is None):
            params = replace(params, max_new_tokens=CONTINUATION_TOKENS)
        return params


class Answer:
    """Used in this order: `open`, `write`, then `statistics_line` and `report`."""

    def __init__(
        self, question: Question, watch: Stopwatch, progress: ProgressBars, *, is_hashing: bool
    ) -> None:
        self._question = question
        self._watch = watch
        self._progress = progress
        self._is_hashing = is_hashing
        self._ids: list[int] = []
        self._logits_sha256: list[str] = []
        self._text = ""
        self._finish_reason: str | None = None

    def open(self, container: Path, config: EngineConfig) -> None:
        """Settles the budget from the container's headers, then loads; what cannot fit is not loaded."""
        from sparseflow.host.memory import memory_facts
        from sparseflow.planning.budget import settle

        self._path = container
        self._config, self._budget = settle(container, config)
        from sparseflow.planning.plan import shortage_notes

        # After the refusal, which needs neither these nor numerical libraries.
        self._notes = shortage_notes(self._budget, memory_facts())
        self._watch.lap("open_seconds")
        from sparseflow.engine.engine import Engine

        self._engine = Engine.open(container, self._config, progress=self._progress)

    def write(self, out: TextIO | None, *, is_echoing: bool) -> bool:
        """Streams the answer to `out` and closes the engine; returns whether Ctrl-C ended it early."""
        engine, question = self._engine, self._question
        is_interrupted = False
        with engine:
            prompt = question.render(engine)
            self._params = question.params(engine)
            if is_echoing and out is not None and prompt == question.text and _is_terminal(out):
                self._progress.clear()
                print(prompt, end="", file=sys.stderr, flush=True)
            shown = _Screen(out, _filter(question, prompt))
            tokens = engine.generate(
                prompt,
                self._params,
                hash_logits=self._is_hashing,
                is_rendered=question.is_rendered(engine),
            )
            try:
                for token in tokens:
                    self._progress.clear()
                    self._ids.append(token.id)
                    self._text += token.text
                    if token.logits_sha256 is not None:
                        self._logits_sha256.append(token.logits_sha256)
                    self._finish_reason = token.finish_reason
                    shown.write(token.text)
            except KeyboardInterrupt:
                is_interrupted = True
                self._finish_reason = "interrupted"
            finally:
                tokens.close()
                self._progress.clear()
                shown.finish()
            self._stats = engine.stats()
            self._watch.lap("engine_seconds")
            self._memory = _memory(self._path)
        self.warnings = (*self._notes, *engine.stats().warnings)
        return is_interrupted

    def statistics_line(self) -> str:
        """One line: speeds, hit rate, bytes read, leases."""
        stats, experts = self._stats, self._stats.experts
        lookups = experts.hits + experts.misses
        parts = [
            f"prompt {stats.prompt_tokens} tokens in {_speed(stats.prompt_tokens, stats.prefill_seconds)}",
            f"{stats.new_tokens} new in {_speed(stats.new_tokens - 1, stats.decode_seconds)}",
            f"{stats.store} {stats.recipe}, {stats.isa}, {_plural(stats.threads, 'thread')}",
            f"hit rate {experts.hits / lookups:.1%}" if lookups else "hit rate -",
            f"read {format_bytes(experts.bytes_read)}",
            *([f"preloaded {experts.preloaded}"] if experts.preloaded else []),
            *([f"cache shrunk to {format_bytes(experts.least_bytes)}"] if experts.shrinks else []),
            f"leases {stats.active_leases}",
        ]
        return " | ".join(parts)

    def report(self) -> dict[str, Any]:
        """Everything about this run, as plain values. Seconds add up to `total_seconds`."""
        stats = self._stats.to_dict()
        steps = hashlib.sha256("".join(self._logits_sha256).encode()).hexdigest()
        return {
            "container": _identity(self._path),
            "prompt_tokens": stats["prompt_tokens"],
            "ids": self._ids,
            "text": self._text,
            "finish_reason": self._finish_reason,
            "logits_sha256": self._logits_sha256,
            "steps_sha256": steps,
            "isa": stats["isa"],
            "threads": stats["threads"],
            "store": stats["store"],
            "policy": self._config.policy,
            "recipe": stats["recipe"],
            "experts": stats["experts"],
            "timings": self._timings(stats["times"]),
            "memory": {**self._memory, "by_use": stats["memory"], "budget": self._budget.to_dict()},
            "leases": stats["active_leases"],
            "warnings": list(self.warnings),
        }

    def _timings(self, engine: Mapping[str, float]) -> dict[str, float]:
        """Consecutive seconds: ours, then the engine's phases; `unaccounted_seconds` is what no clock covers."""
        laps = self._watch.seconds
        del laps["engine_seconds"]  # the engine tells it in more detail
        phases = {name: value for name, value in engine.items() if name != "total_seconds"}
        named = {**laps, **phases}
        total = self._watch.total_seconds
        return {**named, "unaccounted_seconds": total - sum(named.values()), "total_seconds": total}


class _Screen:
    """Where the text goes: through the reasoning filter, if there is one, and at once."""

    def __init__(self, out: TextIO | None, hidden: ThinkingFilter | None) -> None:
        self._out = out
        self._hidden = hidden
        self._last = ""

    def write(self, text: str) -> None:
        if self._hidden is not None:
            text = self._hidden.feed(text)
        self._put(text)

    def finish(self) -> None:
        if self._hidden is not None:
            self._put(self._hidden.finish())
        if not self._last.endswith("\n"):
            self._put("\n")

    def _put(self, text: str) -> None:
        if self._out is not None and text:
            self._out.write(text)
            self._out.flush()
            self._last = text


def _filter(question: Question, prompt: str) -> ThinkingFilter | None:
    if question.thinking != "hide":
        return None
    return ThinkingFilter(is_inside=prompt.rstrip().endswith("<think>"))


def _is_terminal(out: TextIO) -> bool:
    return out.isatty() and sys.stderr.isatty()


def _speed(tokens: int, seconds: float) -> str:
    if tokens < 1 or seconds <= 0:
        return format_seconds(seconds)
    return f"{format_seconds(seconds)} ({tokens / seconds:.1f} tok/s)"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _memory(container: Path) -> dict[str, int]:
    """Bytes now: anonymous and file-backed of this process, and the container's part of the kernel's page cache."""
    from sparseflow.host.process import page_cache_bytes, process_memory

    files = [path for path in container.rglob("*") if path.is_file()]
    return {**asdict(process_memory()), "page_cache_bytes": page_cache_bytes(files)}


def _identity(container: Path) -> dict[str, str]:
    """What names a container's bytes: the manifest holds the hash of every file."""
    manifest = container / "manifest.json"
    return {
        "path": str(container),
        "manifest_sha256": hashlib.sha256(manifest.read_bytes()).hexdigest(),
    }
