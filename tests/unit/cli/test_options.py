"""Shared flags become one EngineConfig; models are looked for where the flag, then SPARSEFLOW_HOME, say."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from sparseflow.cli.options import places, with_engine_options
from sparseflow.config import EngineConfig


def _parse(*words: str) -> EngineConfig:
    seen: list[EngineConfig] = []

    @with_engine_options
    def command(name: str = "x", *, engine: EngineConfig) -> None:
        assert name == "x"
        seen.append(engine)

    app = typer.Typer()
    app.command()(command)
    app(list(words), standalone_mode=False)
    return seen[0]


def test_no_flags_are_the_defaults() -> None:
    assert _parse() == EngineConfig(heat_dir=places().cache_dir / "heat")


def test_flags_become_fields() -> None:
    config = _parse(
        "--ram=8G", "--cache=500MB", "--store=streaming", "--policy=lru", "--ctx=100", "--threads=3",
        "--isa=portable", "--prefill-chunk=7", "--no-direct-io", "--no-heat", "--io=pread",
    )  # fmt: skip
    assert config == EngineConfig(
        ram_bytes=8 << 30,
        cache_bytes=500_000_000,
        store="streaming",
        policy="lru",
        ctx=100,
        threads=3,
        isa="portable",
        prefill_chunk=7,
        direct_io=False,
        io="pread",
    )


def test_home_variable_moves_models_and_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEFLOW_HOME", "/somewhere")
    assert places().models_dir == Path("/somewhere/models")
    assert places().cache_dir == Path("/somewhere/cache")


def test_models_dir_flag_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEFLOW_HOME", "/somewhere")
    found = places(Path("/elsewhere"))
    assert (found.models_dir, found.cache_dir) == (Path("/elsewhere"), Path("/somewhere/cache"))
