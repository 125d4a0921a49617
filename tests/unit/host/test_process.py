"""Memory of this process by kind, and what the page cache holds of a file."""

from __future__ import annotations

import os
from pathlib import Path

from sparseflow.host.process import page_cache_bytes, process_memory


def test_anonymous_memory_grows_with_what_is_written() -> None:
    before = process_memory().anonymous_bytes
    block = bytearray(os.urandom(1 << 20) * 32)
    assert process_memory().anonymous_bytes - before > len(block) * 0.9
    assert process_memory().peak_bytes >= process_memory().anonymous_bytes


def test_absent_lines_are_zero(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nRssFile:\t 12 kB\n", encoding="ascii")
    memory = process_memory(status)
    assert (memory.anonymous_bytes, memory.file_bytes) == (0, 12 * 1024)


def test_page_cache_of_a_file_just_written_is_seen_and_absent_files_are_zero(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    assert 0 < page_cache_bytes([path, tmp_path / "absent"]) <= 100_000
    (tmp_path / "empty").touch()
    assert page_cache_bytes([tmp_path / "empty"]) == 0
