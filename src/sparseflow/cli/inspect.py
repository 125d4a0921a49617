"""`inspect`: what a checkpoint or container holds, by class; where the bytes of one expert lie."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparseflow.cli import models
from sparseflow.cli.console import say, show_table, write_json
from sparseflow.cli.options import JsonOption, ModelsDirOption
from sparseflow.errors import ConfigError
from sparseflow.units import format_bytes

if TYPE_CHECKING:
    from sparseflow.checkpoint.summary import ClassSummary

MAX_NAMED = 20


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="The directory of a checkpoint or container, a GGUF file, or a model's name.",
        ),
    ],
    expert: Annotated[
        str | None,
        typer.Option(
            metavar="L:E",
            help="Where the weights of one expert lie: layer and expert.",
            show_default=False,
        ),
    ] = None,
    models_dir: ModelsDirOption = None,
    json: JsonOption = None,
) -> None:
    """Show the tensors of a checkpoint or container by class, or the byte ranges of one expert."""
    path = Path(model)
    key = None if expert is None else _parse_expert(expert)
    if _is_checkpoint(path):
        document = _checkpoint_document(path, key)
    else:
        document = _container_document(models.resolve(model, models_dir), key)
    if json is not None:
        write_json(document, json)
    if json == "-":
        return
    if key is None:
        _show_classes(document)
    else:
        _show_slices(document)


def _is_checkpoint(path: Path) -> bool:
    from sparseflow.checkpoint.open import is_gguf

    is_directory = path.is_dir() and not (path / models.MANIFEST).exists()
    return is_directory or (path.exists() and is_gguf(path))


def _parse_expert(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6}):(\d{1,6})", text)
    if match is None:
        raise ConfigError(f"--expert {text!r}: layer and expert were expected, for example 0:17")
    return int(match[1]), int(match[2])


def _checkpoint_document(path: Path, key: tuple[int, int] | None) -> dict[str, Any]:
    from sparseflow.checkpoint.expert_slices import ExpertSlices
    from sparseflow.checkpoint.open import is_gguf, open_checkpoint
    from sparseflow.checkpoint.summary import summarize_checkpoint

    if key is not None and is_gguf(path):
        raise ConfigError(
            f"{path}: --expert shows byte ranges, and a GGUF file's experts have none before they"
            " are dequantized; prepare a container and inspect that"
        )
    with open_checkpoint(path) as checkpoint:
        document: dict[str, Any] = {
            "checkpoint": str(path),
            "model_type": checkpoint.config["model_type"],
        }
        slices = ExpertSlices(checkpoint)
        if key is None:
            unknown = [tensor.name for tensor in checkpoint.unknown]
            return {**document, **_classes(summarize_checkpoint(checkpoint)), "unknown": unknown}
        parts = []
        for part in slices.get(*key):
            data = bytearray(part.nbytes)
            checkpoint.read_into(part.file, part.offset, memoryview(data))
            sha256 = hashlib.sha256(data).hexdigest()
            parts.append(
                {
                    **asdict(part),
                    "file": str(part.file),
                    "shape": list(part.shape),
                    "sha256": sha256,
                }
            )
        return {**document, "layer": key[0], "expert": key[1], "slices": parts}


def _container_document(path: Path, key: tuple[int, int] | None) -> dict[str, Any]:
    from sparseflow.container.reader import Container
    from sparseflow.container.summary import summarize_container

    with Container.open(path) as container:
        manifest = container.manifest
        document: dict[str, Any] = {
            "container": str(path),
            "model_type": manifest.model_type,
            "recipe": manifest.recipe,
        }
        if key is None:
            return {**document, **_classes(summarize_container(container)), "unknown": []}
        sections = [
            {
                **asdict(section),
                "file": str(section.file),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
            for section, data in container.expert_sections(*key)
        ]
        return {**document, "layer": key[0], "expert": key[1], "slices": sections}


def _classes(lines: list[ClassSummary]) -> dict[str, Any]:
    return {
        "classes": [asdict(line) for line in lines],
        "num_tensors": sum(line.num_tensors for line in lines),
        "nbytes": sum(line.nbytes for line in lines),
        "bytes_per_token": sum(line.bytes_per_token for line in lines),
    }


def _show_classes(document: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("class", show_footer=True)
    table.columns[0].footer = "all"
    totals = (
        str(document["num_tensors"]),
        format_bytes(document["nbytes"]),
        format_bytes(document["bytes_per_token"]),
    )
    for heading, footer in zip(("tensors", "bytes", "per token, at most"), totals, strict=True):
        table.add_column(heading, footer, justify="right")
    table.add_column("stored as")
    for line in document["classes"]:
        table.add_row(
            line["tensor_class"],
            str(line["num_tensors"]),
            format_bytes(line["nbytes"]),
            format_bytes(line["bytes_per_token"]),
            ", ".join(line["formats"]),
        )
    show_table(table)
    unknown = document["unknown"]
    print(f"{document['num_tensors'] - len(unknown)} tensors classified, {len(unknown)} unknown")
    for name in unknown[:MAX_NAMED]:
        say(f"unknown: {name}")
    if len(unknown) > MAX_NAMED:
        say(f"and {len(unknown) - MAX_NAMED} more unknown tensors; --json names all")


def _show_slices(document: dict[str, Any]) -> None:
    for part in document["slices"]:
        print(f"{part['projection']}  {part['dtype']} {part['shape']}")
        print(f"  file    {part['file']}")
        print(f"  tensor  {part['tensor']}")
        print(f"  offset  {part['offset']}")
        print(f"  length  {part['nbytes']}")
        print(f"  sha256  {part['sha256']}")
