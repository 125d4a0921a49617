"""`prepare`: a checkpoint becomes a container."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparseflow.cli.console import progress_bars, say, write_json
from sparseflow.cli.options import JsonOption, QuietOption
from sparseflow.units import format_bytes


def prepare(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="The directory of a safetensors checkpoint.", show_default=False
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="The container's directory.", show_default=False
        ),
    ],
    recipe: Annotated[
        str, typer.Option(metavar="bf16|int8", help="Formats of the weights.")
    ] = "int8",
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Turn a checkpoint into a container; if interrupted, the same command goes on where it was."""
    from sparseflow.checkpoint.checkpoint import Checkpoint
    from sparseflow.checkpoint.summary import collapse_names, not_carried

    with Checkpoint.open(source) as checkpoint:
        left_out = not_carried(checkpoint)
    # A damaged header has been refused by now, without the memory that numerical libraries take.
    from sparseflow.container.manifest import MANIFEST_NAME, read_manifest
    from sparseflow.prepare.prepare import prepare as prepare_container

    was_complete = (output / MANIFEST_NAME).exists()
    with progress_bars(quiet=quiet, in_bytes=True) as progress:
        prepare_container(source, output, recipe, progress)
    nbytes = sum(record.nbytes for record in read_manifest(output).files.values())
    if not quiet:
        for tensor_class, names in left_out.items():
            say(
                f"not carried: {len(names)} {tensor_class} tensors: {', '.join(collapse_names(names))}"
            )
    if json is not None:
        document = {
            "container": str(output),
            "recipe": recipe,
            "bytes": nbytes,
            "not_carried": left_out,
        }
        write_json(document, json)
    if json != "-":
        verb = "was complete" if was_complete else "written"
        print(f"{output}: {recipe} container {verb}, {format_bytes(nbytes)}")
