"""`doctor`: whether this machine, and a container on it, are as they should be; what to do where they are not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparseflow.cli import models
from sparseflow.cli.console import progress_bars, show_table, write_json
from sparseflow.cli.options import (
    JsonOption,
    ModelsDirOption,
    QuietOption,
    places,
    with_engine_options,
)
from sparseflow.config import EngineConfig
from sparseflow.errors import ConfigError, ContainerError

if TYPE_CHECKING:
    from sparseflow.planning.check import Check

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@with_engine_options
def doctor(
    engine: EngineConfig,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A container, a name, demo or demo:RECIPE. Without it: the machine alone.",
            show_default=False,
        ),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read and check every byte of the container.")
    ] = False,
    models_dir: ModelsDirOption = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> int:
    """Check this machine, and a container on it, for what makes models slow or fail; exit code 1 if anything fails."""
    if deep and model is None:
        raise ConfigError("--deep is for a container; name a MODEL")
    from sparseflow.planning import doctor as examination

    checks = examination.examine_machine(engine)
    container: Path | None = None
    if model is None:
        checks += examination.examine_storage(places(models_dir).models_dir)
    else:
        place = _find(model, models_dir, quiet=quiet)
        if isinstance(place, Path):
            container = place
            checks += examination.examine_container(container, engine)
        else:
            checks.append(place)
    if deep and container is not None:
        checks.append(_verify(container, quiet=quiet))
    return _report(checks, container, json)


def _find(model: str, models_dir: Path | None, *, quiet: bool) -> Path | Check:
    """The container; or, if what the name leads to is none, that as a finding."""
    from sparseflow.planning.check import Check

    try:
        with progress_bars(quiet=quiet, in_bytes=True) as progress:
            return models.resolve(model, models_dir, progress)
    except ContainerError as error:
        return Check("container", "fail", str(error), "prepare the model again")


def _verify(container: Path, *, quiet: bool) -> Check:
    """`sparseflow verify` as one line."""
    from sparseflow.planning.check import Check
    from sparseflow.prepare.verify import verify
    from sparseflow.units import format_bytes

    try:
        with progress_bars(quiet=quiet, in_bytes=True) as progress:
            report = verify(container, progress=progress)
    except ContainerError as error:
        return Check("every byte", "fail", str(error), "prepare the model again")
    size = format_bytes(report.num_bytes)
    found = f"{report.num_files} files, {report.num_experts} experts, {size}"
    if report.is_good:
        return Check("every byte", "ok", f"{found}, all with their hashes")
    found = f"{len(report.findings)} findings in {found}; the first: {report.findings[0]}"
    remedy = f"sparseflow verify {container} shows all; prepare the model again"
    return Check("every byte", "fail", found, remedy)


def _report(checks: list[Check], container: Path | None, json: str | None) -> int:
    from sparseflow.planning.check import worst

    verdict = worst(check.verdict for check in checks)
    if json is not None:
        document = {
            "verdict": verdict,
            "container": None if container is None else str(container),
            "checks": [check.to_dict() for check in checks],
        }
        write_json(document, json)
    if json != "-":
        _show(checks)
    return 1 if verdict == "fail" else 0


def _show(checks: list[Check]) -> None:
    """Found and remedy share a cell: three columns of sentences would be too narrow for a terminal of 80."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for check in checks:
        text = Text(check.found)
        if check.remedy:
            text.append(f"\n-> {check.remedy}", style="" if check.verdict == "ok" else "bold")
        table.add_row(Text(check.verdict, style=STYLES[check.verdict]), check.name, text)
    show_table(table)
    counts = {name: sum(check.verdict == name for check in checks) for name in ("warn", "fail")}
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    print(", ".join(parts) if parts else "all is well")
