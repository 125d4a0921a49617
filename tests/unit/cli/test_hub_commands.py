"""prepare ORG/NAME, list and remove, and what other commands say of a hub's model that is not here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import Hub, serve

from make_synthetic_checkpoint import make, parse_options
from sparseflow.cli.main import main
from sparseflow.errors import ConfigError, StorageError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["--names", "qwen3.6", "--tiny", "--layers", "2", "--shards", "3"]
    return make(parse_options([*words, str(tmp_path_factory.mktemp("source"))]))


@pytest.fixture
def hub(source: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub that huggingface_hub is set to, as by HF_ENDPOINT."""
    with serve(Hub(source, repo_id="org/model")) as hub:
        template = "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", hub.url + template
        )
        yield hub


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARSEFLOW_HOME", str(tmp_path))
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["models"]
    return rows


def interrupted(hub: Hub, home: Path) -> str:
    """What a prepare says that is interrupted in its first shard's download."""
    hub.bytes_per_second = 2e6
    command = [sys.executable, "-m", "sparseflow.cli.main", "prepare", "org/model"]
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "SPARSEFLOW_HOME": str(home)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        shards = home / "models/org--model--int4/.prepare/shards"
        while process.poll() is None and not (shards.exists() and any(shards.iterdir())):
            pass
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    hub.bytes_per_second = None
    assert process.returncode == 130
    return said


def test_prepare_list_inspect_and_remove_know_the_same_name(
    hub: Hub, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = home / "models" / "org--model--int8"
    assert main(["prepare", "org/model", "--recipe", "int8", "--keep-checkpoint"]) == 0
    shown = capsys.readouterr()
    assert f"{output}: int8 container written" in shown.out
    assert "not carried: 333 vision tensors" in shown.err
    assert f"checkpoint kept in {output}.checkpoint" in shown.err
    (row,) = listed(capsys)
    assert (row["name"], row["recipe"], row["unfinished"]) == ("org/model:int8", "int8", False)
    assert row["checkpoint_bytes"] > row["bytes"] > 0
    for name in ("org/model", "org/model:int8"):
        assert main(["inspect", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["container"] == str(output)
    assert main(["list"]) == 0
    assert "org/model:int8" in capsys.readouterr().out
    assert main(["remove", "org/model:int8", "--yes"]) == 0
    assert list((home / "models").iterdir()) == []


def test_an_interrupted_download_is_listed_goes_on_and_can_be_removed(
    hub: Hub, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = interrupted(hub, home)
    assert said.strip() == "sparseflow: interrupted; the same command goes on where it was"
    (row,) = listed(capsys)
    assert (row["name"], row["unfinished"]) == ("org/model:int4", True)
    assert row["bytes"] > 0
    assert main(["list"]) == 0
    assert "unfinished" in capsys.readouterr().out
    assert main(["verify", "org/model"]) == ConfigError.exit_code
    assert "sparseflow prepare org/model --recipe int4" in capsys.readouterr().err
    assert main(["remove", "org/model:int4", "--yes"]) == 0
    assert list((home / "models").iterdir()) == []
    interrupted(hub, home)
    assert main(["prepare", "org/model:int4", "--quiet"]) == 0
    assert [row["unfinished"] for row in listed(capsys)] == [False]


def test_a_download_at_work_is_not_removed(
    hub: Hub, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sparseflow.prepare.workspace import open_workspace

    path = home / "models" / "org--model--int4"
    with open_workspace(path, wait=False) as workspace:
        workspace.work.mkdir()
        assert main(["remove", "org/model:int4", "--yes"]) == StorageError.exit_code
    assert "another process is preparing" in capsys.readouterr().err
    assert workspace.work.exists()


def test_an_output_directory_may_be_given(
    hub: Hub, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["prepare", f"org/model@{hub.commit}", "--output", str(home / "c"), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["container"] == str(home / "c")
    assert not (home / "models").exists()


def test_a_directory_goes_before_a_hub_s_name(
    hub: Hub, home: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "org").mkdir()
    (home / "org" / "model").symlink_to(source)
    monkeypatch.chdir(home)
    assert main(["prepare", "org/model", "--output", str(home / "c"), "--quiet"]) == 0
    assert hub.requests == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["org/none"], "no such model on the hub"),
        (["org/model@v2"], "no such model with a revision 'v2'"),
        (["org/model:int8", "--recipe", "int4"], "which one?"),
        (["org/model:int5"], "unknown recipe 'int5'"),
        (["org/model", "--recipe"], "no such directory"),
    ],
)
def test_what_cannot_be_prepared_is_one_line(
    hub: Hub, home: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["prepare", *words]) == ConfigError.exit_code
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (home / "models").exists() or list((home / "models").iterdir()) == []


def test_only_what_is_downloaded_can_be_kept(
    source: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["prepare", str(source), "--output", str(home / "c"), "--keep-checkpoint"]
    assert main(words) == ConfigError.exit_code
    assert "--keep-checkpoint is for a hub's model" in capsys.readouterr().err


MACHINE = "ram=8GiB,disk=1.9GB/s,memory=35GB/s"


@pytest.mark.usefixtures("home")
def test_plan_reads_headers_alone_and_keeps_nothing(
    hub: Hub, source: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "org/model", "--machine", MACHINE, "--json"]) == 0
    remote = json.loads(capsys.readouterr().out)
    assert main(["plan", str(source), "--machine", MACHINE, "--json"]) == 0
    local = json.loads(capsys.readouterr().out)
    assert remote["recipes"] == local["recipes"]
    assert not any(home.rglob("*.safetensors"))


@pytest.mark.usefixtures("home", "hub")
def test_plan_says_what_would_be_downloaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "org/model", "--machine", MACHINE]) == 0
    assert "download: " in capsys.readouterr().out


@pytest.mark.usefixtures("hub")
def test_run_asks_before_it_downloads(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "org/model", "1 2 3", "--max-new-tokens", "4"]
    assert main(words) == 10
    said = capsys.readouterr().err
    assert "--yes" in said
    assert "container of" in said
    assert not any(home.rglob("manifest.json"))


@pytest.mark.usefixtures("home")
def test_run_with_yes_plans_prepares_and_answers(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "org/model", "1 2 3", "--max-new-tokens", "4", "--json"]
    assert main([*words, "--yes"]) == 0
    captured = capsys.readouterr()
    assert "It runs: int8" in captured.err  # everything fits: the most accurate
    first = json.loads(captured.out)
    assert first["recipe"] == "int8"
    asked = len(hub.requests)
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["ids"] == first["ids"]
    assert len(hub.requests) == asked  # the second run needs no hub


def test_run_goes_on_with_the_recipe_that_was_begun(
    hub: Hub, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(hub, home)
    hub.bytes_per_second = None
    assert main(["run", "org/model", "1 2 3", "--max-new-tokens", "2", "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert "going on with int4" in captured.err
    assert json.loads(captured.out)["recipe"] == "int4"


@pytest.mark.usefixtures("hub")
def test_run_refuses_before_downloading_what_would_not_fit(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "org/model", "a", "--ram", "20M", "--yes"]) == 15
    assert "dense weights" in capsys.readouterr().err
    assert not any(home.rglob("manifest.json"))
