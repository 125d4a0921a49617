"""Decode speed over cache size, with the floor drawn in. Needs matplotlib: `pip install 'sparseflow[plot]'`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparseflow.planning.plot import check_plot


@dataclass(frozen=True, slots=True)
class Point:
    """One cache size."""

    cache_bytes: int
    speed: float
    """Measured tokens a second."""
    floor: float
    """Tokens a second with demand overlap at the floor."""
    perfect: float
    """The same if no read ever waited for the router."""


def draw(points: Sequence[Point], title: str, path: Path) -> None:
    """Writes the picture. Raises what `check_plot` raises."""
    check_plot(path)
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "sparseflow"  # the same points make the same file
    from matplotlib import pyplot

    ordered = sorted(points, key=lambda point: point.cache_bytes)
    sizes = [point.cache_bytes / 2**30 for point in ordered]
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    axes.plot(
        sizes, [p.perfect for p in ordered], ":", color="#9fb3c8", label="limit, reads never wait"
    )
    axes.plot(
        sizes, [p.floor for p in ordered], "--", color="#52606d", label="limit, reads on demand"
    )
    axes.plot(sizes, [p.speed for p in ordered], "o-", color="#b44d12", label="measured")
    axes.set(xlabel="expert cache, GiB", ylabel="decode, tokens/s", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
