"""Decode miss rates of the cache on recorded routes, through the `replay` command."""

from __future__ import annotations

import json
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from sparseflow.bench.cell import start
from sparseflow.errors import ConfigError


def miss_rate(routes: Path | None, capacity: float, *, preloads: bool = False) -> tuple[float, str]:
    """(mean decode misses per lookup, Belady's in words) at a share of all experts.

    preloads: each session starts with the heat of the others. Raises ConfigError without routes, and what `replay`
    raises.
    """
    if routes is None:
        raise ConfigError("no routes: suite setting `routes`")
    report = replay(routes, capacity, preloads)
    return float(report["miss_rate"]), f"Belady {report['belady_miss_rate']:.1%}"


@cache
def replay(routes: Path, capacity: float, preloads: bool) -> dict[str, Any]:
    """One capacity of the command's report."""
    with tempfile.TemporaryDirectory(prefix="sparseflow-replay-") as directory:
        out = Path(directory) / "report.json"
        command = [
            sys.executable, "-m", "sparseflow.cli.main", "replay", str(routes),
            "--policy", "scored", "--capacity", f"{capacity:.1%}", f"--json={out}",
        ]  # fmt: skip
        if preloads:
            command.append("--heat-from-others")
        start(command, Path(directory), None)
        (report,) = json.loads(out.read_text(encoding="utf-8"))["replays"]
    found: dict[str, Any] = report
    return found
