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


Tried = dict[Setting, dict[str, Any]]
"""Reports of trials; each has both speeds, so a search by the other metric need not run them again."""


def search_best(
    plan: Plan, metric: str, new: int = SEARCH_NEW, tried: Tried | None = None
) -> tuple[Setting, list[Trial]]:
    """The best setting by `metric`, and all trials. REQUIRES: plan.peer.

    Under a limit the model is mapped and not rearranged, since copies would not fit; read-ahead is tried instead.
    tried: of earlier searches under the same conditions; is added to.
    """
    known: Tried = {} if tried is None else tried
    assert plan.peer is not None
    if plan.limit_bytes is None:
        first, length = Setting(plan.threads), SEARCH_PROMPT
        space = search_space(first)
    else:
        first, length = Setting(plan.threads, "mmap", 0), LIMITED_PROMPT
        space = limited_space(first, read_aheads(plan.peer.model))
    ids = prompt_ids(plan.container, min(length, plan.prompt))

    def run(setting: Setting) -> dict[str, Any]:
        if setting not in known:
            known[setting] = run_peer(plan, setting, ids, new)
        return known[setting]

    return search(run, first, metric, space)


def read_aheads(path: Path) -> tuple[int | None, ...]:
    """The machine's own (None), and what Linux ships where that differs and can be set."""
    try:
        own = read_ahead_kib(path)
        with read_ahead(path, own):
            pass
    except UnsupportedError:
        return (None,)
    return (None,) if own == SHIPPED_KIB else (None, SHIPPED_KIB)
