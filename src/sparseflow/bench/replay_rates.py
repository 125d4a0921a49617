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
    """(decode misses per lookup, Belady's beside it) at a share of all experts. Raises ConfigError without routes.

    preloads: each session starts with the heat of the others.
    """
    if routes is None:
        raise ConfigError("no routes: suite setting `routes`")
    report = replay(routes, capacity, preloads)
    return float(report["miss_rate"]), f"Belady {report['belady']:.1%}"


@cache
def replay(routes: Path, capacity: float, preloads: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="sparseflow-replay-") as directory:
        out = Path(directory) / "report.json"
        command = [
            sys.executable, "-m", "sparseflow.cli.main", "replay", str(routes),
            "--policy", "scored", "--capacity", str(capacity), f"--json={out}",
        ]  # fmt: skip
        if preloads:
            command.append("--preload")
        start(command, Path(directory), None)
        report: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return report
