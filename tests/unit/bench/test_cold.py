"""Cold is believed only where the kernel's counters prove it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparseflow.bench.cold import ColdProof, cached_share, container_files, drop_pages

PROVEN = ColdProof(
    cached_share=0.0, needed_bytes=1000, read_bytes=1000, seconds=1.0, disk_bytes=1000.0
)


def test_proven_run_has_no_doubt() -> None:
    assert PROVEN.doubt == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cached_share": 0.5}, "stayed in the page cache"),
        ({"read_bytes": None}, "no counter"),
        ({"read_bytes": 900}, "only 900 of 1000"),
        ({"seconds": 0.5}, "faster than the disk probe"),
    ],
)
def test_each_missing_proof_is_named(change: dict[str, float], words: str) -> None:
    assert words in replace(PROVEN, **change).doubt  # type: ignore[arg-type]


def test_dropped_files_are_no_longer_cached(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(bytes(1 << 20))
    assert file.read_bytes()
    share = drop_pages([file], drop_caches=tmp_path / "no_switch")
    if share > 0:
        pytest.skip("this filesystem keeps its pages")
    assert cached_share([file]) == 0.0
    assert file.read_bytes() == bytes(1 << 20)


def test_all_files_of_a_container_are_named(tiny_moe: Path) -> None:
    names = [path.name for path in container_files(tiny_moe)]
    assert {"manifest.json", "dense.safetensors", "layer_000.sfi"} <= set(names)
    assert cached_share([]) == 0.0
