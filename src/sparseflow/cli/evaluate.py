"""`eval`: measures of quality. `perplexity` compares recipes of one model, or models, on one text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparseflow.cli import models
from sparseflow.cli.console import progress_bars, show_table, write_json
from sparseflow.cli.options import JsonOption, ModelsDirOption, QuietOption, with_engine_options
from sparseflow.config import EngineConfig
from sparseflow.errors import ConfigError, StorageError

app = typer.Typer(help="Measure quality.", rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Keeps `perplexity` a subcommand while it is the only one."""


@app.command("perplexity")
@with_engine_options
def perplexity(
    model: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="For example demo:bf16 demo:int8.")
    ],
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="UTF-8 text. Default: the demo's held-out text."),
    ] = None,
    window: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Length of a window. Default: the context.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Use the first N tokens only.")
    ] = None,
    models_dir: ModelsDirOption = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
    *,
    engine: EngineConfig,
) -> None:
    """Nats per token and perplexity of each MODEL on one text, and the ratio to the first."""
    words = _read_text(text)

    from sparseflow.engine.engine import Engine
    from sparseflow.evaluation.perplexity import Perplexity, measure
    from sparseflow.planning.budget import settle

    results: list[tuple[str, Perplexity]] = []
    with progress_bars(quiet=quiet) as progress:
        paths = [models.resolve(name, models_dir, progress) for name in model]
        for name, path in zip(model, paths, strict=True):
            config, _ = settle(path, engine)
            with Engine.open(path, config, progress=progress) as opened:
                ids = opened.tokenizer.encode(words, add_special_tokens=True)[:max_tokens]
                results.append((name, measure(opened, ids, window or opened.config.ctx, progress)))
    first = results[0][1]
    if json is not None:
        rows = [
            {"model": name, **r.to_dict(), "ratio": r.perplexity / first.perplexity}
            for name, r in results
        ]
        write_json({"results": rows}, json)
        return
    from rich.table import Table

    table = Table("model", "tokens", "nats/token", "perplexity", "ratio")
    for name, result in results:
        ratio = result.perplexity / first.perplexity
        nats, value = f"{result.nats_per_token:.6f}", f"{result.perplexity:.4f}"
        table.add_row(name, str(result.num_tokens), nats, value, f"{ratio:.6f}")
    show_table(table)


def _read_text(path: Path | None) -> str:
    if path is None:
        from sparseflow.demo import heldout_path

        path = heldout_path()
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{path}: cannot read: {error.strerror}", path=str(path), errno=error.errno
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}") from error
