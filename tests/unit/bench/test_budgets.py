"""bench --budgets and --check-counters: what a row is judged by, and one real row under a real limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparseflow.bench.budgets import BudgetBench, BudgetRow
from sparseflow.bench.budgets_report import budgets_document, budgets_sheet, verdict_lines
from sparseflow.bench.counters import Comparison, check_counters, compare
from sparseflow.errors import BudgetError, ConfigError, UnsupportedError
from sparseflow.planning import kernel_rates, speeds


def _nothing(_: str, __: int, ___: int) -> None:
    pass


@pytest.fixture(scope="module")
def row(tiny_moe: Path) -> BudgetRow:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speeds, "MEMORY_BYTES", 2 << 20)
        patch.setattr(kernel_rates, "SINGLE_BYTES", 1 << 20)
        bench = BudgetBench(tiny_moe, 20, 5, {}, _nothing)
        budgets = bench.parse(["floor", "200M"])
        try:
            return bench.run("floor", budgets["floor"], is_sweeping=True)
        except UnsupportedError as error:
            pytest.skip(str(error))


def test_a_run_at_the_floor_stays_below_it(row: BudgetRow) -> None:
    assert 0 < row.measured.peak_bytes <= row.ram_bytes
    assert row.measured.oom_kills == row.measured.pswpout == row.measured.leases == 0
    assert row.measured.cache_bytes == row.budget.arena_bytes
    assert {each.sha256 for each in row.sweep} <= {row.measured.sha256}


def test_every_broken_promise_is_named(row: BudgetRow) -> None:
    good = replace(
        row,
        measured=replace(row.measured, peak_bytes=row.budget.anonymous_bytes),
        prediction=replace(
            row.prediction, decode_tokens_per_second=row.measured.decode_tokens_per_second
        ),
        sweep=(),
    )
    assert good.misses() == []
    assert verdict_lines([good])[0].startswith("ok")
    for change, said in (
        ({"peak_bytes": row.ram_bytes + 1}, "above --ram"),
        ({"oom_kills": 1}, "killed"),
        ({"pswpout": 3}, "swapped"),
        ({"leases": 1}, "leases"),
        ({"decode_tokens_per_second": 1e-3}, "decode predicted"),
        ({"peak_bytes": row.budget.anonymous_bytes // 2}, "peak predicted"),
    ):
        bad = replace(good, measured=replace(good.measured, **change))
        assert any(said in miss for miss in bad.misses()), said
    faster = replace(good.measured, request_seconds=good.measured.request_seconds / 2)
    assert "best" in replace(good, sweep=(faster,)).misses()[0]
    other = replace(good, measured=replace(good.measured, sha256="0"))
    assert "2 hashes" in verdict_lines([good, other])[0]


def test_table_and_document_have_a_line_for_each(row: BudgetRow) -> None:
    assert len(budgets_sheet([row, row]).rows) == 2
    assert len(budgets_sheet([row]).rows[0]) == len(budgets_sheet([row]).headings)
    assert budgets_document([row])["budgets"][0]["name"] == "floor"


def test_a_budget_below_the_floor_is_refused(tiny_moe: Path) -> None:
    bench = BudgetBench(tiny_moe, 20, 5, {}, _nothing)
    floor = bench.parse(["floor"])["floor"]
    with pytest.raises(BudgetError, match="at least"):
        bench.run("less", floor - 1, is_sweeping=False)


def test_budgets_are_sizes_or_names(tiny_moe: Path) -> None:
    bench = BudgetBench(tiny_moe, 20, 5, {}, _nothing)
    found = bench.parse(["floor", "1G", "resident"])
    assert found["1G"] == 1 << 30
    assert found["floor"] < found["resident"]
    with pytest.raises(ConfigError):
        bench.parse([])
    with pytest.raises(ConfigError):
        bench.parse(["much"])


def test_our_counters_are_the_kernels(tiny_moe: Path) -> None:
    try:
        found = check_counters(tiny_moe, {}, 20, 5)
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert [each.what for each in found[:3]] == ["anonymous", "anonymous", "mapped files"]
    assert all(each.agrees for each in found[:3]), found


def test_a_counter_that_differs_is_seen() -> None:
    ours = {"anonymous_bytes": 100, "file_bytes": 10, "page_cache_bytes": 50}
    kernel = {
        "anonymous_bytes": 104,
        "group_anonymous_bytes": 101,
        "file_bytes": 10,
        "group_file_bytes": 0,
    }
    assert [each.agrees for each in compare(ours, kernel)] == [False, True, True, False]
    assert Comparison("", 0, "", 0).agrees
