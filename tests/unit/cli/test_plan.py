"""plan and preset at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparseflow.cli.main import main

MACHINE = "ram=8GiB,disk=1.9GB/s,memory=35GB/s"


def test_a_container_is_planned_with_its_own_recipe(
    tiny_moe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(tiny_moe), "--machine", MACHINE]) == 0
    out = capsys.readouterr().out
    assert "int8" in out
    assert "int4" not in out
    assert "dense weights" in out
    assert "It runs" in out


def test_a_checkpoint_is_planned_in_every_recipe(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(tiny_checkpoint), "--machine", MACHINE, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["recipe"] for row in document["recipes"]] == ["bf16", "int8", "int4", "int4-small"]
    for row in document["recipes"]:
        assert row["floor"]["total_bytes"] == row["floor"]["ram_bytes"]
        assert row["prepare_seconds"] > 0
        assert row["prediction"]["decode_tokens_per_second"] > 0


def test_what_does_not_fit_ends_with_a_negative_verdict(
    tiny_moe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(tiny_moe), "--machine", MACHINE, "--ram", "10M"]) == 1
    assert "It does not run here" in capsys.readouterr().out


def test_the_floor_that_is_printed_is_accepted_and_one_byte_less_refused(
    tiny_moe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["plan", str(tiny_moe), "--machine", MACHINE, "--json"])
    floor = json.loads(capsys.readouterr().out)["recipes"][0]["floor"]["total_bytes"]
    words = ["run", str(tiny_moe), "a", "--max-new-tokens", "1", "--quiet", "--ram"]
    assert main([*words, str(floor - 1)]) == 15
    assert str(floor) in capsys.readouterr().err
    assert main([*words, str(floor)]) == 0


def test_without_measuring_typical_speeds_are_assumed(
    tiny_moe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(tiny_moe), "--no-measure"]) == 0
    assert "machine (assumed)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--machine", "ram"], "not one of"),
        (["--prompt", "0"], "at least 1"),
        (["--preset", "huge"], "unknown preset"),
        (["--recipe", "int4"], "has its recipe"),
    ],
)
def test_mistakes_are_one_line(
    tiny_moe: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(tiny_moe), *words]) == 10
    assert said in capsys.readouterr().err


def test_a_preset_is_the_floor_of_what_is_given(
    tiny_moe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", str(tiny_moe), "--machine", MACHINE, "--json", "--preset", "laptop-8gb"]
    assert main(words) == 0
    preset = json.loads(capsys.readouterr().out)["recipes"][0]["budget"]
    assert preset["ram_bytes"] == 5 << 30
    assert main([*words, "--ram", "4G"]) == 0
    given = json.loads(capsys.readouterr().out)["recipes"][0]["budget"]
    assert given["ram_bytes"] == 4 << 30


def test_preset_lists_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preset"]) == 0
    assert "low-memory" in capsys.readouterr().out
    assert main(["preset", "stable", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["store"] == "resident"


def test_speed_over_memory_is_drawn(tiny_moe: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "speed.svg"
    words = ["plan", str(tiny_moe), "--machine", MACHINE, "--quiet", "--plot"]
    assert main([*words, str(picture)]) == 0
    assert "</svg>" in picture.read_text(encoding="utf-8")


def test_a_plot_of_another_kind_is_refused(
    tiny_moe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", str(tiny_moe), "--machine", MACHINE, "--plot", "speed.bmp"]
    assert main(words) == 10
    assert ".svg" in capsys.readouterr().err


def test_where_nothing_can_be_written_a_typical_disk_is_assumed(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sparseflow.cli import plan_model
    from sparseflow.planning import kernel_rates, speeds
    from sparseflow.planning.machine import TYPICAL_DISK

    def full(_: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plan_model, "_fill", full)
    monkeypatch.setattr(speeds, "MEMORY_BYTES", 2 << 20)
    monkeypatch.setattr(kernel_rates, "SINGLE_BYTES", 1 << 20)
    assert main(["plan", str(tiny_checkpoint), "--json", "--quiet"]) == 0
    machine = json.loads(capsys.readouterr().out)["machine"]
    assert (machine["origin"], machine["disk"]) == ("measured", TYPICAL_DISK)


def test_with_little_memory_nothing_is_measured(
    tiny_moe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sparseflow.cli import plan_model

    monkeypatch.setattr(plan_model, "LEAST_TO_MEASURE", 1 << 60)
    assert main(["plan", str(tiny_moe), "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"]["origin"] == "assumed"
