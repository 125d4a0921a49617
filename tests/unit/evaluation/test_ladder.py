"""The ladder's rows cover what the numeric contract promises, and its verdict cannot pass by accident."""

from __future__ import annotations

from typing import Any

from sparseflow.config import ISA_NAMES
from sparseflow.evaluation.ladder import (
    PROMPT,
    Outcome,
    Report,
    Row,
    all_rows,
    choose_prompt,
    judge,
    quick_rows,
)

PARTIAL, FULL = [40, 200, 400], 1000


def _report(steps: str = "abcd", evictions: int = 3) -> Report:
    experts: dict[str, Any] = {"hits": 1, "misses": 1, "evictions": evictions}
    return {
        "logits_sha256": list(steps),
        "ids": [ord(s) for s in steps],
        "experts": experts,
        "isa": "avx2",
    }


def test_rows_cover_every_dimension() -> None:
    rows = all_rows(PARTIAL, FULL)
    assert {row.isa for row in rows} == set(ISA_NAMES)
    assert {1, 2, 3, 7} <= {row.threads for row in rows}
    assert {1, 7, 64} < {row.prefill_chunk for row in rows}
    assert {row.direct_io for row in rows} == {True, False}
    for policy in ("scored", "lru"):
        sizes = {r.cache_bytes for r in rows if r.store == "streaming" and r.policy == policy}
        assert sizes == {*PARTIAL, FULL}


def test_rows_are_distinct() -> None:
    rows = all_rows(PARTIAL, FULL)
    assert len(rows) == len(set(rows))


def test_rows_below_full_capacity_must_evict() -> None:
    for row in (*all_rows(PARTIAL, FULL), *quick_rows(PARTIAL, FULL)):
        is_partial = row.store == "streaming" and row.cache_bytes != FULL
        assert row.must_evict == is_partial


def test_quick_rows_are_few_and_stream_from_the_smallest_arena() -> None:
    rows = quick_rows(PARTIAL, FULL)
    assert len(rows) < len(all_rows(PARTIAL, FULL)) / 3
    assert PARTIAL[0] in {row.cache_bytes for row in rows}


def test_equal_rows_are_identical() -> None:
    verdict = judge([Outcome(Row(), _report()), Outcome(Row(threads=2), _report())])
    assert verdict.is_identical
    assert "one hash in 2 rows" in verdict.sentence


def test_first_differing_step_is_named() -> None:
    verdict = judge([Outcome(Row(), _report("abcd")), Outcome(Row(), _report("abXd"))])
    assert not verdict.is_identical
    assert "row 2 differs from row 1, first at step 2" in verdict.sentence


def test_row_that_ends_early_differs_at_its_end() -> None:
    verdict = judge([Outcome(Row(), _report("abcd")), Outcome(Row(), _report("abc"))])
    assert "first at step 3" in verdict.sentence


def test_id_that_differs_at_equal_logits_is_noticed() -> None:
    other = _report()
    other["ids"] = [*other["ids"][:-1], 7]
    assert not judge([Outcome(Row(), _report()), Outcome(Row(), other)]).is_identical


def test_partial_capacity_without_evictions_proves_nothing() -> None:
    tight = Row(store="streaming", cache_bytes=40, must_evict=True)
    verdict = judge([Outcome(Row(), _report()), Outcome(tight, _report(evictions=0))])
    assert not verdict.is_identical
    assert "row 2 evicted nothing" in verdict.sentence


def test_row_that_failed_fails_the_ladder() -> None:
    verdict = judge([Outcome(Row(), _report()), Outcome(Row(), failure="ended by SIGILL")])
    assert not verdict.is_identical
    assert "SIGILL" in verdict.sentence


def test_row_that_was_not_run_is_named_and_fails_nothing() -> None:
    absent = Outcome(Row(isa="avx512_vnni"), not_run="avx512_vnni (this CPU lacks it)")
    verdict = judge([Outcome(Row(), _report()), absent])
    assert verdict.is_identical
    assert "not run: avx512_vnni" in verdict.sentence


def test_no_row_at_all_is_no_proof() -> None:
    assert not judge([]).is_identical


def test_prompt_is_cut_to_at_most_128_tokens_and_has_at_least_64() -> None:
    assert len(choose_prompt(lambda text: len(text.split())).split()) >= 64
    assert 64 <= len(choose_prompt(len)) <= 128
    assert choose_prompt(len) == PROMPT[: len(choose_prompt(len))].replace("\n", " ")
