"""Predicted decode speed over memory. Needs matplotlib: `pip install 'sparseflow[plot]'`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparseflow.errors import ConfigError, StorageError, UnsupportedError
from sparseflow.planning.model_shape import ModelShape
from sparseflow.planning.plan import Question, speed_curve

ENDINGS = (".svg", ".png", ".pdf")


def check_plot(path: Path) -> None:
    """Raises ConfigError for an ending that is not drawn, UnsupportedError without matplotlib."""
    if path.suffix not in ENDINGS:
        raise ConfigError(f"{path}: plots end in {', '.join(ENDINGS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UnsupportedError("plots need matplotlib: pip install 'sparseflow[plot]'") from None


def draw(shapes: Sequence[ModelShape], question: Question, path: Path) -> None:
    """A line for each recipe, from its floor to where nothing is streamed. Raises what `check_plot` raises, and
    StorageError.
    """
    check_plot(path)
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = "sparseflow"  # the same curves make the same file
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for shape in shapes:
        curve = [(ram / 2**30, speed) for ram, speed in speed_curve(shape, question)]
        axes.plot(*zip(*curve, strict=True), label=shape.recipe)
        axes.plot(*curve[-1], "o", color=axes.lines[-1].get_color())
    axes.set(
        xlabel="--ram, GiB (dot: every expert in memory)",
        ylabel="decode, tokens/s",
        title="Predicted decode speed over memory",
    )
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise StorageError(f"{path}: cannot write the plot: {error}", path=str(path)) from error
