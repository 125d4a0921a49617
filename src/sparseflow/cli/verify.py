"""`verify`: a container's bytes, its agreement with a checkpoint, or the identity ladder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparseflow.cli import models
from sparseflow.cli.console import progress_bars, say, write_json
from sparseflow.cli.options import JsonOption, ModelsDirOption, QuietOption, TokenizerOption
from sparseflow.errors import ConfigError
from sparseflow.units import format_bytes

if TYPE_CHECKING:
    from sparseflow.prepare.verify import VerifyReport

MAX_SHOWN = 20


def verify(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A container, a name, demo or demo:RECIPE.")
    ],
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Compare with the checkpoint, or the GGUF file, that it was made from.",
            show_default=False,
        ),
    ] = None,
    ladder: Annotated[
        bool,
        typer.Option("--ladder", help="Run the model in every way and compare the output bits."),
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="With --ladder: few rows.")] = False,
    tokenizer: TokenizerOption = None,
    models_dir: ModelsDirOption = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> int:
    """Check every byte of a container; exit code 1 if anything differs."""
    if quick and not ladder:
        raise ConfigError("--quick is for --ladder")
    if tokenizer is not None and checkpoint is None:
        raise ConfigError("--tokenizer goes with --checkpoint FILE.gguf")
    with progress_bars(quiet=quiet, in_bytes=True) as progress:
        container = models.resolve(model, models_dir, progress)
    if ladder:
        if checkpoint is not None:
            raise ConfigError("--ladder and --checkpoint are two checks; ask for one at a time")
        from sparseflow.cli.ladder import verify_ladder

        return verify_ladder(container, is_quick=quick, json=json, quiet=quiet)
    from sparseflow.prepare.verify import verify as verify_container

    with progress_bars(quiet=quiet, in_bytes=True) as progress:
        report = verify_container(container, checkpoint, progress, tokenizer)
    if json is not None:
        write_json(_document(container, report), json)
    if json != "-":
        _show(container, report)
    return 0 if report.is_good else 1


def _document(container: Path, report: VerifyReport) -> dict[str, object]:
    return {
        "container": str(container),
        "is_good": report.is_good,
        "files": report.num_files,
        "bytes": report.num_bytes,
        "experts": report.num_experts,
        "compared": report.num_compared,
        "findings": report.findings,
    }


def _show(container: Path, report: VerifyReport) -> None:
    for finding in report.findings[:MAX_SHOWN]:
        say(finding)
    if len(report.findings) > MAX_SHOWN:
        say(f"and {len(report.findings) - MAX_SHOWN} more")
    checked = (
        f"{report.num_files} files, {report.num_experts} experts, {format_bytes(report.num_bytes)}"
    )
    compared = (
        f"; {report.num_compared} files compared with the checkpoint" if report.num_compared else ""
    )
    print(f"{'ok' if report.is_good else 'DAMAGED'}: {container}: {checked}{compared}")
