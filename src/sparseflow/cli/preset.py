"""`preset`: the named configurations, and what each means in full."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from sparseflow.cli.console import show_table, write_json
from sparseflow.cli.options import JsonOption
from sparseflow.config import EngineConfig
from sparseflow.planning.presets import PRESETS, get_preset
from sparseflow.units import format_bytes


def preset(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="One of them; without it all are listed."),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Show the named configurations, or one of them field by field."""
    if name is None:
        _list(json)
        return
    found = get_preset(name)
    fields = asdict(EngineConfig(**found.fields))
    if json is not None:
        write_json({"preset": name, "summary": found.summary, "config": _plain(fields)}, json)
    if json == "-":
        return
    from rich.table import Table

    table = Table("field", "value", "from", title=f"{name}: {found.summary}", title_justify="left")
    for field, value in fields.items():
        table.add_row(field, _show(field, value), "preset" if field in found.fields else "default")
    show_table(table)


def _list(json: str | None) -> None:
    if json is not None:
        rows = {each.name: _plain(dict(each.fields)) for each in PRESETS.values()}
        write_json({"presets": rows}, json)
    if json == "-":
        return
    from rich.table import Table

    table = Table("preset", "what it is for", "sets")
    for each in PRESETS.values():
        sets = ", ".join(f"{field} {_show(field, value)}" for field, value in each.fields.items())
        table.add_row(each.name, each.summary, sets)
    show_table(table)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if name == "heat_dir" and value else value
        for name, value in fields.items()
    }


def _show(field: str, value: Any) -> str:
    if value is None:
        return "chosen by plan"
    return format_bytes(value) if field.endswith("_bytes") else str(value)
