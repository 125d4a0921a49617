"""`list` shows containers and nothing else; `remove` deletes one after it was told so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparseflow.cli.main import main
from sparseflow.experts.heat import heat_path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARSEFLOW_HOME", str(tmp_path))
    container = tmp_path / "models" / "tiny"
    container.mkdir(parents=True)
    manifest = {"model_type": "qwen3_5_moe", "recipe": "int8"}
    (container / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (container / "dense.safetensors").write_bytes(bytes(4096))
    (tmp_path / "models" / "half-written").mkdir()
    return tmp_path


def test_list_shows_containers_only(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["name"] == "tiny"
    assert row["recipe"] == "int8"
    assert row["path"] == str(home / "models" / "tiny")
    assert row["bytes"] > 4096


def test_remove_asks_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert main(["remove", "tiny"]) == 10
    assert (home / "models" / "tiny" / "manifest.json").exists()


def test_remove_deletes_the_container_and_its_heat(home: Path) -> None:
    manifest = (home / "models" / "tiny" / "manifest.json").read_bytes()
    heat = heat_path(home / "cache" / "heat", manifest)
    other = heat.with_name("other.heat")
    heat.parent.mkdir(parents=True)
    heat.touch()
    other.touch()
    assert main(["remove", "tiny", "--yes"]) == 0
    assert not heat.exists()
    assert other.exists()
    assert not (home / "models" / "tiny").exists()
    assert (home / "models" / "half-written").exists()
