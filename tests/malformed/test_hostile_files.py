"""The command line refuses every hostile file: one line, its exit code, little memory, nothing left behind."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from hostile_files import DAMAGED, GGUF_NAME, IDEAS, Idea, make_good

from sparseflow.errors import ContainerError

MEMORY_MARGIN_BYTES = 64 << 20
pytestmark = pytest.mark.timeout(900)  # more than fifty processes

# A process starts with the peak memory of the one that it was forked from, so a small one stands between.
LAUNCHER = """
import json, os, sys
pid = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
with open(sys.argv[1], "w") as file:
    json.dump([os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024], file)
"""


class Outcome(NamedTuple):
    """How a command ended."""

    exit_code: int
    out: str
    err: str
    peak_bytes: int
    """ru_maxrss of the process."""


def run(report: Path, *words: str) -> Outcome:
    """The command in a process of its own."""
    program = [sys.executable, "-m", "sparseflow.cli.main", *words]
    launcher = [sys.executable, "-ISc", LAUNCHER, str(report), *program]
    done = subprocess.run(launcher, capture_output=True, text=True, check=True)
    exit_code, peak_bytes = json.loads(report.read_text())
    return Outcome(exit_code, done.stdout, done.stderr, peak_bytes)


def run_idea(idea: Idea, good: Path, directory: Path) -> Outcome:
    """The command that meets what the idea makes of a copy of something good."""
    hostile = directory / "hostile"
    shutil.copytree(good, hostile)
    idea.make(hostile)
    if idea.kind == "container":
        return run(directory / "report.json", "verify", str(hostile))
    source = hostile / GGUF_NAME if idea.kind == "gguf" else hostile
    return run(
        directory / "report.json", "prepare", str(source), "--output", str(directory / "output")
    )


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One undamaged directory of each kind."""
    root = tmp_path_factory.mktemp("good")
    return {kind: make_good(kind, root / kind) for kind in {idea.kind for idea in IDEAS}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for each idea below it."""
    return tmp_path_factory.mktemp("ideas")


@pytest.fixture(scope="module")
def outcomes(good: dict[str, Path], root: Path) -> dict[str, Outcome]:
    """What became of every idea; two processes at a time."""

    def attempt(idea: Idea) -> Outcome:
        (root / idea.name).mkdir()
        return run_idea(idea, good[idea.kind], root / idea.name)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip((idea.name for idea in IDEAS), pool.map(attempt, IDEAS), strict=True))


@pytest.fixture(scope="module")
def baseline_bytes(root: Path) -> int:
    """Peak memory of `sparseflow --version`."""
    return run(root / "baseline.json", "--version").peak_bytes


@pytest.mark.parametrize("idea", IDEAS, ids=lambda idea: idea.name)
def test_hostile_file_is_refused(
    idea: Idea, outcomes: dict[str, Outcome], baseline_bytes: int, root: Path
) -> None:
    outcome = outcomes[idea.name]
    assert outcome.exit_code == idea.exit_code, outcome.err
    assert idea.phrase in outcome.err
    assert "Traceback" not in outcome.err
    lines = outcome.err.splitlines()
    if idea.exit_code == DAMAGED:
        assert all(str(root / idea.name) in line for line in lines)
        assert "DAMAGED" in outcome.out
    else:
        assert len(lines) == 1
        assert lines[0].startswith("sparseflow: ")
        assert outcome.out == ""
    assert outcome.peak_bytes - baseline_bytes <= MEMORY_MARGIN_BYTES
    assert not (root / idea.name / "output").exists()


@pytest.mark.parametrize("store", ["resident", "streaming"])
def test_run_refuses_a_flipped_bit_in_an_expert(
    store: str, tiny_moe: Path, baseline_bytes: int, tmp_path: Path
) -> None:
    hostile = shutil.copytree(tiny_moe, tmp_path / "hostile")
    for path in (hostile / "experts").iterdir():
        raw = bytearray(path.read_bytes())
        for place in range(5000, len(raw), 4096):
            raw[place] ^= 16
        path.write_bytes(raw)
    words = ["--max-new-tokens", "4", "--temperature", "0", "--raw", "--store", store]
    outcome = run(tmp_path / "report.json", "run", str(hostile), "a", *words)
    assert outcome.exit_code == ContainerError.exit_code
    assert outcome.err.count("\n") == 1
    assert "hash differs" in outcome.err
    assert outcome.out.strip() == ""
    assert outcome.peak_bytes - baseline_bytes <= MEMORY_MARGIN_BYTES


def test_the_most_memory_that_a_refusal_takes_is_small(
    outcomes: dict[str, Outcome], baseline_bytes: int
) -> None:
    most = max(outcome.peak_bytes for outcome in outcomes.values()) - baseline_bytes
    print(
        f"{len(outcomes)} hostile files; at most {most / 2**20:.1f} MiB above sparseflow --version"
    )
    assert most <= MEMORY_MARGIN_BYTES


def test_every_idea_has_a_refusal_of_its_own() -> None:
    assert len({idea.name for idea in IDEAS}) == len(IDEAS)
    assert all(re.fullmatch(r"[a-z0-9_]+", idea.name) for idea in IDEAS)


def test_undamaged_ones_are_accepted(good: dict[str, Path], tmp_path: Path) -> None:
    assert run(tmp_path / "r", "verify", str(good["container"])).exit_code == 0
    sources = {kind: good[kind] for kind in ("checkpoint", "single", "unfused")}
    sources["gguf"] = good["gguf"] / GGUF_NAME
    for kind, source in sources.items():
        outcome = run(tmp_path / "r", "prepare", str(source), "--output", str(tmp_path / kind))
        assert outcome.exit_code == 0, outcome.err


def test_hostile_names_do_not_reach_the_terminal_raw(good: dict[str, Path], tmp_path: Path) -> None:
    hostile = tmp_path / "hostile"
    shutil.copytree(good["single"], hostile)
    file = hostile / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"lm_head.weight"', b'"lm\\u001bead.w"  '))
    outcome = run(tmp_path / "r", "prepare", str(hostile), "--output", str(tmp_path / "o"))
    assert outcome.exit_code == 11
    assert "\x1b" not in outcome.err
