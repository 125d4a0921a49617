"""Flags that several commands share, and the one environment variable: SPARSEFLOW_HOME."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from sparseflow.config import ISA_NAMES, EngineConfig
from sparseflow.planning.presets import PRESETS, get_preset
from sparseflow.units import parse_size

ModelsDirOption = Annotated[
    Path | None,
    typer.Option(
        "--models-dir",
        metavar="DIR",
        help="Where containers with a name lie. Default: SPARSEFLOW_HOME/models, else the platform's data directory.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="[FILE]",
        help="Write a report as JSON: to stdout, or to FILE (a name that ends in .json; any other as --json=FILE).",
        show_default=False,
    ),
]
PresetOption = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(PRESETS),
        help="A named configuration; `sparseflow preset` shows them.",
        show_default=False,
    ),
]
TokenizerOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR_OR_JSON",
        help="Tokenizer files to use instead of a GGUF file's metadata.",
        show_default=False,
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no statistics.")]


def engine_config(
    ram: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Bound on all memory, e.g. 8G. Default: what is free, less a margin.",
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Bound on the expert cache alone. Default: what --ram leaves."
        ),
    ] = None,
    preset: PresetOption = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="auto|resident|streaming", help="Where routed experts live.", show_default=False
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="scored|lru", help="Which expert the cache gives up.", show_default=False
        ),
    ] = None,
    ctx: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Longest sequence. Default: 8192.", show_default=False),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Compute threads. Default: the physical cores.", show_default=False
        ),
    ] = None,
    isa: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(ISA_NAMES),
            help="Instruction set; changes speed, never output.",
            show_default=False,
        ),
    ] = None,
    prefill_chunk: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Prompt tokens computed together.", show_default=False),
    ] = None,
    direct_io: Annotated[
        bool, typer.Option(help="Read experts past the page cache where the filesystem can.")
    ] = True,
    io: Annotated[
        str | None,
        typer.Option(
            metavar="auto|pread|io_uring", help="How experts are read.", show_default=False
        ),
    ] = None,
    watch_pressure: Annotated[
        bool,
        typer.Option(help="Give up cached experts while other programs need the memory."),
    ] = True,
    heat: Annotated[
        bool,
        typer.Option(help="Remember which experts were chosen, and preload them in the next run."),
    ] = True,
) -> EngineConfig:
    """The flags of every command that opens an engine, as the configuration they mean: what was given beside a preset
    wins.
    """
    given = {
        "ram_bytes": None if ram is None else parse_size(ram),
        "cache_bytes": None if cache is None else parse_size(cache),
        "store": store,
        "policy": policy,
        "ctx": ctx,
        "threads": threads,
        "isa": isa,
        "prefill_chunk": prefill_chunk,
        "io": io,
    }
    fields: dict[str, Any] = {} if preset is None else dict(get_preset(preset).fields)
    fields.update({name: value for name, value in given.items() if value is not None})
    heat_dir = places().cache_dir / "heat" if heat else None
    return EngineConfig(
        **fields, direct_io=direct_io, watch_pressure=watch_pressure, heat_dir=heat_dir
    )


def with_engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the flags of `engine_config`; it receives them as one EngineConfig, its parameter `engine`."""
    own = [p for p in _signature(command).parameters.values() if p.name != "engine"]
    shared = list(_signature(engine_config).parameters.values())
    names = {parameter.name for parameter in shared}

    @wraps(command)
    def wrapper(**arguments: Any) -> Any:
        engine = engine_config(**{n: v for n, v in arguments.items() if n in names})
        return command(engine=engine, **{n: v for n, v in arguments.items() if n not in names})

    # typer reads the signature and the annotations of what it registers.
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own + shared]
    wrapper.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in own + shared}
    return wrapper


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function, eval_str=True)


@dataclass(frozen=True, slots=True)
class Places:
    """Where models live: containers with a name, and what is derived and can be made again."""

    models_dir: Path
    cache_dir: Path


def places(models_dir: Path | None = None) -> Places:
    """`--models-dir` first, then SPARSEFLOW_HOME, then the platform's data and cache directories."""
    home = os.environ.get("SPARSEFLOW_HOME")
    if home:
        found = Places(Path(home) / "models", Path(home) / "cache")
    else:
        import platformdirs

        found = Places(
            Path(platformdirs.user_data_dir("sparseflow")) / "models",
            Path(platformdirs.user_cache_dir("sparseflow")),
        )
    return found if models_dir is None else Places(models_dir, found.cache_dir)
