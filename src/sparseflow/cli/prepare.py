"""`prepare`: a checkpoint becomes a container."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparseflow.cli.console import progress_bars, say, show_table, write_json
from sparseflow.cli.options import JsonOption, QuietOption, TokenizerOption
from sparseflow.errors import ConfigError
from sparseflow.units import format_bytes

if TYPE_CHECKING:
    from sparseflow.cli.console import ProgressCallback
    from sparseflow.container.summary import RecipeLine


LIST = "list"


def prepare(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="SOURCE",
            help="The directory of a safetensors checkpoint, or a GGUF file.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="The container's directory.", show_default=False
        ),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(
            metavar="[bf16|int8|int4|int4-small]",
            help="Formats of the weights; alone it lists what each recipe means, for SOURCE if that is given.",
        ),
    ] = "int4",
    tokenizer: TokenizerOption = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Turn a checkpoint into a container; if interrupted, the same command goes on where it was."""
    if recipe == LIST:
        _list_recipes(source, json)
        return
    if source is None or output is None:
        missing = "SOURCE" if source is None else "--output DIR"
        raise ConfigError(f"prepare needs {missing}; or --recipe alone, which lists the recipes")
    _prepare(source, output, recipe, tokenizer, json, quiet=quiet)


def _prepare(
    source: Path,
    output: Path,
    recipe: str,
    tokenizer: Path | None,
    json: str | None,
    *,
    quiet: bool,
) -> None:
    from sparseflow.checkpoint.open import open_checkpoint
    from sparseflow.checkpoint.summary import collapse_names, not_carried

    with open_checkpoint(source) as checkpoint:
        left_out, types = not_carried(checkpoint), checkpoint.quantized_types
    # A damaged header has been refused by now, without the memory that numerical libraries take.
    from sparseflow.container.manifest import MANIFEST_NAME, read_manifest
    from sparseflow.prepare.prepare import prepare as prepare_container

    was_complete = (output / MANIFEST_NAME).exists()
    with progress_bars(quiet=quiet, in_bytes=True) as progress:
        show = _labelled(progress, types)
        prepare_container(source, output, recipe, show, tokenizer=tokenizer)
    nbytes = sum(record.nbytes for record in read_manifest(output).files.values())
    for tensor_class, names in () if quiet else left_out.items():
        say(f"not carried: {len(names)} {tensor_class} tensors: {', '.join(collapse_names(names))}")
    if json is not None:
        document = {
            "container": str(output),
            "recipe": recipe,
            "bytes": nbytes,
            "not_carried": left_out,
            "requantized_from": types,
        }
        write_json(document, json)
    if json != "-":
        verb = "was complete" if was_complete else "written"
        print(f"{output}: {recipe} container {verb}, {format_bytes(nbytes)}{_requantized(types)}")


def _labelled(progress: ProgressCallback, types: list[str]) -> ProgressCallback:
    """Progress that also says what weights are requantized from."""

    def show(task: str, done: int, total: int) -> None:
        progress(f"{task}, requantized from {', '.join(types)}" if types else task, done, total)

    return show


def _requantized(types: list[str]) -> str:
    if not types:
        return ""
    return f"; requantized from {', '.join(types)}: its quality is bounded by the source's"


def _list_recipes(source: Path | None, json: str | None) -> None:
    from sparseflow.container.summary import recipe_lines

    lines = recipe_lines(None if source is None else _read_config(source))
    if json is not None:
        write_json({"recipes": [asdict(line) for line in lines]}, json)
    if json != "-":
        _show_recipes(lines)


def _read_config(source: Path) -> dict[str, Any]:
    from sparseflow.checkpoint.model_config import read_text_config
    from sparseflow.checkpoint.open import is_gguf, open_checkpoint

    if not is_gguf(source):
        return read_text_config(source)
    with open_checkpoint(source) as checkpoint:
        return checkpoint.config


def _show_recipes(lines: list[RecipeLine]) -> None:
    from rich.table import Table

    table = Table("recipe", *lines[0].formats)
    has_sizes = lines[0].nbytes is not None
    for heading in ("container", "bits per weight", "bytes per token, at most") * has_sizes:
        table.add_column(heading, justify="right")
    for line in lines:
        cells = [
            f"{name} ({line.bits_per_weight[kind]:g} bits)" for kind, name in line.formats.items()
        ]
        if line.nbytes is not None and line.bytes_per_token is not None:
            cells += [
                format_bytes(line.nbytes),
                f"{line.mean_bits_per_weight:.2f}",
                format_bytes(line.bytes_per_token),
            ]
        table.add_row(line.recipe, *cells)
    show_table(table)
