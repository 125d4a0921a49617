"""Huge pages, from recorded settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparseflow.host.pages import page_facts


@pytest.mark.parametrize("mode", ["always", "madvise", "never"])
def test_the_mode_in_brackets_is_chosen(tmp_path: Path, mode: str) -> None:
    settings = tmp_path / "sys/kernel/mm/transparent_hugepage"
    settings.mkdir(parents=True)
    text = "always madvise never\n".replace(mode, f"[{mode}]")
    (settings / "enabled").write_text(text, encoding="ascii")
    (settings / "hpage_pmd_size").write_text("2097152\n", encoding="ascii")
    facts = page_facts(tmp_path)
    assert (facts.mode, facts.huge_page_bytes, facts.reserved_bytes) == (mode, 2 << 20, 0)


def test_pages_set_aside_by_hand_are_counted_in_all_sizes(tmp_path: Path) -> None:
    for size, count in ((2048, 100), (1048576, 2)):
        pool = tmp_path / f"sys/kernel/mm/hugepages/hugepages-{size}kB"
        pool.mkdir(parents=True)
        (pool / "nr_hugepages").write_text(f"{count}\n", encoding="ascii")
    assert page_facts(tmp_path).reserved_bytes == (200 << 20) + (2 << 30)


def test_a_kernel_without_them_has_no_mode(tmp_path: Path) -> None:
    facts = page_facts(tmp_path)
    assert (facts.mode, facts.huge_page_bytes) == ("", None)
