"""`bench` from end to end on tiny models, with small probes: what is counted must add up; no speed is asserted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparseflow.bench import documents, plot, probes
from sparseflow.bench.cell import Cell, run_cell
from sparseflow.bench.limits import MemoryGroup
from sparseflow.cli.main import main
from sparseflow.container.reader import Container
from sparseflow.errors import ConfigError, UnsupportedError
from sparseflow.planning import speeds

FAKE = Path(__file__).parent / "fake_peer.py"
Bench = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Runs the command with --json and small probes; gives exit code and document."""
    monkeypatch.setattr(speeds, "MEMORY_BYTES", 2 << 20)
    monkeypatch.setattr(speeds, "MEMORY_PASSES", 3)
    monkeypatch.setattr(speeds, "INT8_SECONDS", 0.0)
    monkeypatch.setattr(probes, "STEADY", 1e9)

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        report = tmp_path / "report.json"
        code = main(["bench", *arguments, "--quiet", f"--json={report}"])
        return code, json.loads(report.read_text()) if report.exists() else {}

    return run


@pytest.fixture
def chained(tiny_moe: Path, tmp_path: Path) -> Path:
    """A container whose chain is what it decodes greedily."""
    container = tmp_path / "chained"
    shutil.copytree(tiny_moe, container)
    prompt = [3, 1, 4, 1, 5]
    ids = run_cell(Cell(str(tiny_moe), prompt, 6))["ids"]
    (container / "chain.json").write_text(json.dumps({"ids": prompt + ids, "decided": []}))
    return container


def test_streaming_row_adds_up(bench: Bench, tiny_moe: Path) -> None:
    with Container.open(tiny_moe) as container:
        blob = container.layouts[0].blob_bytes
        top_k = int(container.config["num_experts_per_tok"])
        layers = container.manifest.experts.num_layers
    cache = 3 * layers * top_k * blob // 2
    code, document = bench(
        str(tiny_moe), "--prompt=8,16", "--new=5", "--warm-up=2", "--pairs=2", f"--cache={cache}"
    )
    assert code == 0
    assert len(document["rows"]) == 2
    row = next(row for name, row in document["rows"].items() if name.endswith("prompt 8"))
    assert row["figures"]["num_pairs"] == len(row["measured"]["pairs"]) == 2
    ours = row["measured"]["pairs"][0]["ours"]
    decode, prefill = ours["decode"], ours["prefill"]
    assert len(ours["ids"]) == 1 + 2 + 5
    assert len(decode["token_seconds"]) == len(decode["step_reads"]) == 5
    assert [sum(column) for column in zip(*decode["step_reads"], strict=True)] == decode[
        "layer_reads"
    ]
    assert decode["experts"]["reads"] == sum(decode["layer_reads"])
    assert decode["experts"]["bytes_read"] == decode["experts"]["reads"] * blob
    assert decode["experts"]["hits"] + decode["experts"]["misses"] == 5 * layers * top_k
    assert 0 < decode["experts"]["wait_cpu_seconds"] <= decode["cpu_seconds"]
    assert prefill["tokens"] == 8
    assert sum(prefill["layer_reads"]) == prefill["experts"]["reads"]
    for phase in (decode, prefill):
        assert sum(phase["split"].values()) == pytest.approx(phase["wall_seconds"])
    assert sum(decode["token_seconds"]) <= decode["wall_seconds"]
    assert row["run"]["leases"] == 0
    assert row["figures"]["decode"]["doubt"]  # a tiny model is in the CPU's cache


def test_row_carries_what_a_result_needs(bench: Bench, tiny_moe: Path) -> None:
    _, document = bench(str(tiny_moe), "--prompt=4", "--new=2", "--pairs=1", "--store=resident")
    (row,) = document["rows"].values()
    assert {"cpu", "memory_bytes", "kernel", "cores"} <= row["machine"].keys()
    assert {"commit", "is_clean", "version"} <= row["code"].keys()
    container = row["container"]
    assert {"recipe", "checkpoint", "filesystem", "device", "num_layers"} <= container.keys()
    assert container["bits_per_weight"]["experts"] > 8
    assert {"isa", "threads", "store", "policy", "queue_depth", "io", "budget"} <= row["run"].keys()
    assert row["run"]["store"] == "resident"
    assert row["temperature"]["kind"] == "warm"
    start = row["measured"]["pairs"][0]["ours"]["start"]
    parts = ("interpreter_seconds", "import_seconds", "open_seconds", "first_token_seconds")
    assert sum(start[part] for part in parts) == pytest.approx(start["total_seconds"])


def test_touched_experts_are_counted(tiny_moe: Path) -> None:
    report = run_cell(Cell(str(tiny_moe), [1, 2, 3, 4], counts_routes=True))
    with Container.open(tiny_moe) as container:
        top_k = int(container.config["num_experts_per_tok"])
    touched = report["prefill"]["touched"]
    assert len(touched) == 4
    assert all(top_k <= count <= 4 * top_k for count in touched)


def test_childs_error_is_the_commands_error(tiny_moe: Path, bench: Bench) -> None:
    code, _ = bench(str(tiny_moe), "--prompt=9000", "--pairs=1")
    assert code == ConfigError.exit_code


def test_limit_bounds_the_child_and_is_in_the_row(bench: Bench, tiny_moe: Path) -> None:
    try:
        MemoryGroup(1 << 28).remove()
    except UnsupportedError as error:
        pytest.skip(str(error))
    _, document = bench(str(tiny_moe), "--prompt=4", "--new=2", "--pairs=1", "--limit=400M")
    (row,) = document["rows"].values()
    watch = row["measured"]["pairs"][0]["ours"]["watch"]
    assert row["limit_bytes"] == watch["limit_bytes"] == 400 << 20
    assert 0 < watch["group_peak_bytes"] <= 400 << 20
    assert watch["oom_kills"] == watch["pswpout"] == 0
    assert row["run"]["budget"]["ram_bytes"] <= 400 << 20


def test_where_no_group_can_be_made_the_row_says_so(
    bench: Bench, tiny_moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: MemoryGroup, limit_bytes: int) -> None:
        raise UnsupportedError("no memory limit: none here")

    monkeypatch.setattr(MemoryGroup, "__init__", refuse)
    _, document = bench(str(tiny_moe), "--prompt=4", "--new=2", "--pairs=1", "--limit=1G")
    (row,) = document["rows"].values()
    assert row["limit_bytes"] is None
    assert row["limit_note"] == "no memory limit: none here"


def test_peer_runs_alternately_at_its_best_setting(
    bench: Bench, tiny_moe: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    code, document = bench(
        str(tiny_moe), "--prompt=4", "--new=3", "--pairs=2", f"--peer=llama.cpp={tmp_path}",
        f"--peer-model={model}", f"--peer-driver={FAKE}",
    )  # fmt: skip
    assert code == 0
    (row,) = document["rows"].values()
    assert row["peer"]["setting"]["repack"] == 1
    assert {trial["setting"]["repack"] for trial in document["trials"]["peer"]} == {0, 1}
    decode = row["figures"]["decode"]
    assert decode["peer_tokens_per_second"] == pytest.approx(100.0)
    assert len(decode["ratios"]) == 2


def test_chain_that_is_walked_is_ok(bench: Bench, chained: Path) -> None:
    code, document = bench(str(chained), "--prompt=5", "--check-chain=6")
    assert code == 0
    assert document["chain"]["differences"] == []
    assert document["chain"]["found"]["sparseflow"] == document["chain"]["expected"]


def test_chain_that_is_not_walked_fails_with_position_and_ids(
    bench: Bench, chained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = json.loads((chained / "chain.json").read_text())
    true_id = chain["ids"][8]
    chain["ids"][8] = true_id + 1
    (chained / "chain.json").write_text(json.dumps(chain))
    code, document = bench(str(chained), "--prompt=5", "--check-chain=6")
    assert code == 1
    wanted = f"sparseflow differs at position 8: {true_id} instead of {true_id + 1}"
    assert document["chain"]["differences"] == [wanted]
    assert f"DIFFERENT: {wanted}" in capsys.readouterr().out


def test_peer_that_leaves_the_chain_fails_too(bench: Bench, chained: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    code, document = bench(
        str(chained), "--prompt=5", "--check-chain=6", f"--peer=llama.cpp={tmp_path}",
        f"--peer-model={model}", f"--peer-driver={FAKE}",
    )  # fmt: skip
    assert code == 1
    (difference,) = document["chain"]["differences"]
    assert difference.startswith("llama.cpp differs at position 5")


def test_container_agrees_with_itself_and_less_with_another_recipe(
    bench: Bench, tiny_moe: Path, tiny_bf16: Path
) -> None:
    _, same = bench(str(tiny_bf16), "--prompt=20", f"--reference={tiny_bf16}")
    assert same["reference"]["worst_share"] == 1.0
    assert same["reference"]["mean_kl"] == 0.0
    assert same["reference"]["same_argmax"] == 1.0
    _, other = bench(str(tiny_moe), "--prompt=20", f"--reference={tiny_bf16}")
    assert other["reference"]["num_tokens"] == 148
    assert len(other["reference"]["layer_shares"]) == 4
    assert 0.5 < other["reference"]["worst_share"] <= 1.0
    assert 0.0 < other["reference"]["mean_kl"] < 1.0


def test_sweep_goes_from_a_layers_choice_to_all_experts_and_is_drawn(
    bench: Bench, tiny_moe: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plot.svg"
    code, document = bench(
        str(tiny_moe), "--prompt=4", "--new=2", "--pairs=1", "--sweep-cache", f"--plot={picture}"
    )
    assert code == 0
    sizes = [row["cell"]["config"]["cache_bytes"] for row in document["rows"].values()]
    with Container.open(tiny_moe) as container:
        every = len(container.layouts) * container.layouts[0].num_experts
        assert max(sizes) == every * container.layouts[0].blob_bytes
    assert sizes == sorted(set(sizes))
    assert picture.read_text().startswith("<?xml")


def test_targets_without_anything_to_measure_are_not_measured(
    bench: Bench, tiny_bf16: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = bench(str(tiny_bf16), "--report=targets", "--only=D1,L1")
    assert code == 0
    verdicts = {each["name"]: each["verdict"] for each in document["targets"]}
    assert set(verdicts.values()) == {"not measured"}
    assert "not measured: no container: --int8" in capsys.readouterr().out


def test_target_of_a_container_that_is_there_is_measured(
    bench: Bench, tiny_moe: Path, tmp_path: Path
) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text("prompt = 4\nnew = 2\nwarm_up = 1\npairs = 1\n")
    code, document = bench(
        str(tiny_moe), "--report=targets", f"--suite={suite}", f"--int4={tiny_moe}", "--only=P3,D1"
    )
    outcomes = {each["name"]: each for each in document["targets"]}
    assert "fits the CPU's cache" in outcomes["D1"]["reason"]
    assert outcomes["P3:2048"]["value"] is None or outcomes["P3:2048"]["value"] > 0
    assert code in (0, 1)


def test_documents_hold_every_table_and_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "docs" / "images").mkdir(parents=True)
    points = [plot.Point(1 << 30, 2.0, 3.0, 4.0), plot.Point(2 << 30, 3.0, 3.5, 4.0)]
    sheet = documents.Sheet("Cells", ("cell", "speed"), [("a", "1")])
    empty = documents.Sheet("Empty", ("x",), [])
    written = documents.write_documents(tmp_path, "the command", ["a fact"], [sheet, empty], points)
    page = (tmp_path / documents.PAGE).read_text()
    assert "| a | 1 |" in page
    assert "`the command`" in page
    assert "Empty" not in page
    assert [path.exists() for path in written] == [True, True]
    first = (tmp_path / documents.PICTURE).read_bytes()
    documents.write_documents(tmp_path, "the command", ["a fact"], [sheet], points)
    assert (tmp_path / documents.PICTURE).read_bytes() == first
    with pytest.raises(ConfigError, match="not a source checkout"):
        documents.write_documents(tmp_path / "docs", "x", [], [], [])


@pytest.mark.parametrize(
    "words",
    [
        ["--prompt=0"],
        ["--prompt=x"],
        ["--peer=llama.cpp"],
        ["--peer=ollama=/x"],
        ["--peer=llama.cpp=/nowhere"],
        ["--report=all"],
        ["--report=targets", "--only=D99"],
        ["--isa=sse9"],
        ["--plot=x.svg"],
        ["--plot=x.txt", "--sweep-cache"],
        ["--check-chain=0"],
        ["--check-chain=4"],
        ["--pairs=0"],
        ["--suite=/nowhere.toml", "--report=targets"],
    ],
)
def test_mistakes_end_before_anything_runs(
    bench: Bench, tiny_moe: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = bench(str(tiny_moe), *words)
    assert code == ConfigError.exit_code
    assert document == {}
    assert len(capsys.readouterr().err.splitlines()) == 1
