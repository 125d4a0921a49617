"""The search for a peer's best setting under the conditions of a plan: with or without a memory limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparseflow.bench.chain import prompt_ids
from sparseflow.bench.measure import Plan, run_peer
from sparseflow.bench.peer import (
    SEARCH_NEW,
    SEARCH_PROMPT,
    Setting,
    Trial,
    limited_space,
    search,
    search_space,
)
from sparseflow.bench.read_ahead import SHIPPED_KIB, read_ahead, read_ahead_kib
from sparseflow.errors import UnsupportedError

LIMITED_PROMPT = 16
"""Tokens of a trial under a limit, where a prompt reads nearly the whole model."""


def search_best(plan: Plan, metric: str, new: int = SEARCH_NEW) -> tuple[Setting, list[Trial]]:
    """The best setting by `metric`, and all trials. REQUIRES: plan.peer.

    Under a limit the model is mapped and not rearranged, since copies would not fit; read-ahead is tried instead.
    """
    assert plan.peer is not None
    if plan.limit_bytes is None:
        first, length = Setting(plan.threads), SEARCH_PROMPT
        space = search_space(first)
    else:
        first, length = Setting(plan.threads, "mmap", 0), LIMITED_PROMPT
        space = limited_space(first, read_aheads(plan.peer.model))
    return search(lambda setting: _run(plan, setting, length, new), first, metric, space)


def _run(plan: Plan, setting: Setting, prompt: int, new: int) -> dict[str, Any]:
    return run_peer(plan, setting, prompt_ids(plan.container, min(prompt, plan.prompt)), new)


def read_aheads(path: Path) -> tuple[int | None, ...]:
    """The machine's own (None), and what Linux ships where that differs and can be set."""
    try:
        own = read_ahead_kib(path)
        with read_ahead(path, own):
            pass
    except UnsupportedError:
        return (None,)
    return (None,) if own == SHIPPED_KIB else (None, SHIPPED_KIB)
