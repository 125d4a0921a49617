"""What `--write-docs` leaves in a source checkout: docs/results.md and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparseflow.bench.plot import Point, draw
from sparseflow.bench.report import Sheet
from sparseflow.errors import ConfigError

PAGE = Path("docs/results.md")
PICTURE = Path("docs/images/speed_over_cache.svg")


def write_documents(
    root: Path, command: str, facts: Sequence[str], sheets: Sequence[Sheet], points: Sequence[Point]
) -> list[Path]:
    """Writes the page below `root`, the picture where there are points. Raises ConfigError outside of a checkout."""
    if not (root / "docs" / "images").is_dir():
        raise ConfigError(f"{root}: not a source checkout; it has no docs/images")
    written = [root / PAGE]
    parts = [
        "# Measured",
        "",
        "Written by the command below, not by hand; how things are measured is in [benchmarks.md](benchmarks.md).",
        "",
        f"`{command}`",
        "",
        *(f"* {fact}" for fact in facts),
        "",
    ]
    if points:
        draw(points, "Decode speed over cache size", root / PICTURE)
        written.append(root / PICTURE)
        parts += [f"![Decode speed over cache size](images/{PICTURE.name})", ""]
    parts += [sheet.to_markdown() for sheet in sheets if sheet.rows]
    (root / PAGE).write_text("\n".join(parts), encoding="utf-8")
    return written
