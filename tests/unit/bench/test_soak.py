"""The soak, for a short time, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "soak.py"


def _soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_short_soak_leaves_nothing_behind(tiny_moe: Path) -> None:
    done = _soak(str(tiny_moe), "--steps=90", "--every=30", "--tolerance=0.1")
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.match(r"90 steps, cache .*, (\d+) evictions; .* in 3 samples", done.stdout)
    assert found is not None
    assert int(found[1]) > 0


def test_cache_that_holds_everything_proves_nothing(tiny_moe: Path) -> None:
    done = _soak(str(tiny_moe), "--steps=20", "--every=10", "--cache=1G", "--tolerance=1")
    assert done.returncode == 1
    assert "NOT OK: the cache never evicted" in done.stdout


def test_error_is_one_line(tmp_path: Path) -> None:
    done = _soak(str(tmp_path / "nothing"))
    assert done.returncode == 10
    assert len(done.stderr.splitlines()) == 1
