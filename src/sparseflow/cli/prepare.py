"""`prepare`: a checkpoint becomes a container."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparseflow.cli.console import progress_bars, say, show_table, write_json
from sparseflow.cli.options import (
    JsonOption,
    ModelsDirOption,
    QuietOption,
    TokenizerOption,
    places,
)
from sparseflow.errors import ConfigError
from sparseflow.units import format_bytes

if TYPE_CHECKING:
    from sparseflow.cli.console import ProgressCallback
    from sparseflow.container.hub_names import HubName
    from sparseflow.container.summary import RecipeLine

MANIFEST_NAME = "manifest.json"
LIST = "list"
INTERRUPTED_EXIT_CODE = 130
DEFAULT_RECIPE = "int4"


def prepare(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="The directory of a safetensors checkpoint, a GGUF file, or ORG/NAME or ORG/NAME@REVISION on a hub.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="The container's directory. Default for a hub's model: one in the models directory.",
            show_default=False,
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="[bf16|int8|int4|int4-small]",
            help="Formats of the weights; alone it lists what each recipe means, for SOURCE if that is given."
            " Default: int4.",
            show_default=False,
        ),
    ] = None,
    keep_checkpoint: Annotated[
        bool,
        typer.Option(
            "--keep-checkpoint",
            help="Keep what is downloaded, in a directory beside the container: its name and .checkpoint.",
        ),
    ] = False,
    tokenizer: TokenizerOption = None,
    models_dir: ModelsDirOption = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> int:
    """Turn a checkpoint into a container; if interrupted, the same command goes on where it was.

    From a hub, one shard after another is downloaded, converted and deleted.
    """
    if recipe == LIST:
        _list_recipes(source, json)
        return 0
    hub_name = None if source is None else _hub_name(source)
    if source is None or (output is None and hub_name is None):
        missing = "SOURCE" if source is None else "--output DIR"
        raise ConfigError(f"prepare needs {missing}; or --recipe alone, which lists the recipes")
    report = _Report(json, quiet)
    try:
        if hub_name is not None:
            recipe = _choose_recipe(hub_name, recipe)
            _refuse_tokenizer(source, tokenizer)
            where = places(models_dir).models_dir
            _prepare_from_hub(hub_name, where, output, recipe, report, keep=keep_checkpoint)
        elif keep_checkpoint:
            raise ConfigError(f"--keep-checkpoint is for a hub's model; {source} stays as it is")
        elif output is not None:
            _prepare(Path(source), output, recipe or DEFAULT_RECIPE, tokenizer, report)
    except KeyboardInterrupt:
        say("sparseflow: interrupted; the same command goes on where it was")
        return INTERRUPTED_EXIT_CODE
    return 0


@dataclass(frozen=True, slots=True)
class _Report:
    """Where the outcome is told."""

    json: str | None
    quiet: bool

    def tell(
        self,
        output: Path,
        recipe: str,
        left_out: dict[str, list[str]],
        types: list[str],
        *,
        was_complete: bool,
    ) -> None:
        from sparseflow.checkpoint.summary import collapse_names
        from sparseflow.container.manifest import read_manifest

        nbytes = sum(record.nbytes for record in read_manifest(output).files.values())
        if not self.quiet:
            for tensor_class, names in left_out.items():
                say(
                    f"not carried: {len(names)} {tensor_class} tensors: {', '.join(collapse_names(names))}"
                )
        if self.json is not None:
            document = {
                "container": str(output),
                "recipe": recipe,
                "bytes": nbytes,
                "not_carried": left_out,
                "requantized_from": types,
            }
            write_json(document, self.json)
        if self.json != "-":
            verb = "was complete" if was_complete else "written"
            print(
                f"{output}: {recipe} container {verb}, {format_bytes(nbytes)}{_requantized(types)}"
            )


def _refuse_tokenizer(source: str, tokenizer: Path | None) -> None:
    if tokenizer is not None:
        raise ConfigError(f"--tokenizer is for a GGUF file; {source} has its own")


def _prepare(
    source: Path, output: Path, recipe: str, tokenizer: Path | None, report: _Report
) -> None:
    from sparseflow.checkpoint.open import open_checkpoint
    from sparseflow.checkpoint.summary import not_carried

    with open_checkpoint(source) as checkpoint:
        left_out, types = not_carried(checkpoint), checkpoint.quantized_types
    # A damaged header has been refused by now, without the memory that numerical libraries take.
    from sparseflow.prepare.prepare import prepare as prepare_container

    was_complete = (output / MANIFEST_NAME).exists()
    with progress_bars(quiet=report.quiet, in_bytes=True) as progress:
        show = _labelled(progress, types)
        prepare_container(source, output, recipe, show, tokenizer=tokenizer)
    report.tell(output, recipe, left_out, types, was_complete=was_complete)


def _prepare_from_hub(
    name: HubName,
    models_dir: Path,
    output: Path | None,
    recipe: str,
    report: _Report,
    *,
    keep: bool,
) -> None:
    from sparseflow.checkpoint.summary import not_carried
    from sparseflow.container.hub_names import checkpoint_path, container_path
    from sparseflow.prepare.hub import prepare_from_hub

    output = output or container_path(models_dir, name.repo_id, recipe)
    was_complete = (output / MANIFEST_NAME).exists()
    left_out: dict[str, list[str]] = {}
    with progress_bars(quiet=report.quiet, in_bytes=True) as progress:
        prepare_from_hub(
            name.repo_id,
            models_dir,
            recipe,
            progress,
            revision=name.revision,
            output=output,
            keep_checkpoint=keep,
            on_headers=lambda checkpoint: left_out.update(not_carried(checkpoint)),
        )
    report.tell(output, recipe, left_out, [], was_complete=was_complete)
    if not report.quiet and checkpoint_path(output).exists():
        say(f"checkpoint kept in {checkpoint_path(output)}")


def _hub_name(source: str) -> HubName | None:
    """The hub's model that a SOURCE means, None for a directory."""
    from sparseflow.container.hub_names import parse_hub_name

    return None if Path(source).exists() else parse_hub_name(source)


def _choose_recipe(name: HubName, recipe: str | None) -> str:
    if recipe is not None and name.recipe not in (None, recipe):
        raise ConfigError(f"{name.repo_id}:{name.recipe} or --recipe {recipe}: which one?")
    return recipe or name.recipe or DEFAULT_RECIPE


def _labelled(progress: ProgressCallback, types: list[str]) -> ProgressCallback:
    """Progress that also says what weights are requantized from."""

    def show(task: str, done: int, total: int) -> None:
        progress(f"{task}, requantized from {', '.join(types)}" if types else task, done, total)

    return show


def _requantized(types: list[str]) -> str:
    if not types:
        return ""
    return f"; requantized from {', '.join(types)}: its quality is bounded by the source's"


def _list_recipes(source: str | None, json: str | None) -> None:
    from sparseflow.container.summary import recipe_lines

    if source is not None and _hub_name(source) is not None:
        raise ConfigError(f"{source}: no such directory; sizes are listed for a checkpoint on disk")
    lines = recipe_lines(None if source is None else _read_config(Path(source)))
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
