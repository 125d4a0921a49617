"""A container straight from a hub: the bytes of a local prepare, at most two shards on disk, resumed anywhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import COMMIT, Fault, Hub, serve

from make_synthetic_checkpoint import make, parse_options
from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.transfer import Patience
from sparseflow.container.hub_names import checkpoint_path, container_path
from sparseflow.errors import (
    BudgetError,
    CheckpointError,
    ConfigError,
    ContainerError,
    SparseFlowError,
    StorageError,
    UnsupportedError,
)
from sparseflow.prepare.hub import prepare_from_hub
from sparseflow.prepare.prepare import prepare

QUICK = Patience(tries=3, first_wait=0.005)
NEXT_COMMIT = "f" * 40
SHARDS = [f"model-{number:05d}-of-00004.safetensors" for number in range(1, 5)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers in four shards, gate_up and down of a layer in different ones."""
    words = ["--tiny", "--layers", "2", "--order", "adversarial", "--shards", "4"]
    return make(parse_options([*words, str(tmp_path_factory.mktemp("source"))]))


@pytest.fixture(scope="module")
def reference(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a local prepare makes of it."""
    return contents(prepare(source, tmp_path_factory.mktemp("reference") / "c"))


@pytest.fixture
def hub(source: Path) -> Iterator[Hub]:
    with serve(Hub(source)) as hub:
        yield hub


@pytest.fixture
def damaged(source: Path, tmp_path: Path) -> Iterator[Hub]:
    """Serves a copy that a test may change."""
    shutil.copytree(source, tmp_path / "damaged")
    with serve(Hub(tmp_path / "damaged")) as hub:
        yield hub


def contents(directory: Path) -> dict[str, bytes]:
    """All files below a directory, hidden ones included."""
    files = [path for path in directory.rglob("*") if not path.is_dir()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(files)}


def take(hub: Hub, models_dir: Path, **options: Any) -> Path:
    """prepare_from_hub of what the hub serves."""
    return prepare_from_hub(hub.repo_id, models_dir, endpoint=hub.url, patience=QUICK, **options)


class Interruption(BaseException):
    """As Ctrl-C."""


class Interrupting:
    """A progress callback that interrupts at its Nth call for a task."""

    def __init__(self, task: str, number: int) -> None:
        self.task, self.left = task, number

    def __call__(self, task: str, done: int, total: int) -> None:
        self.left -= task == self.task
        if self.left <= 0 and task == self.task:
            raise Interruption


@pytest.mark.parametrize(
    ("words", "recipe"),
    [
        (["--layers", "2", "--order", "adversarial", "--shards", "5"], "int8"),
        (["--layers", "1", "--unfused", "--order", "adversarial", "--shards", "3"], "int4-small"),
        (["--layers", "1", "--shards", "1"], "bf16"),
    ],
    ids=["adversarial", "unfused", "one-shard"],
)
def test_the_bytes_are_those_of_a_local_prepare(
    tmp_path: Path, words: list[str], recipe: str
) -> None:
    source = make(parse_options(["--tiny", *words, str(tmp_path / "s")]))
    local = contents(prepare(source, tmp_path / "c", recipe))
    with serve(Hub(source)) as hub:
        output = take(hub, tmp_path / "m", recipe=recipe)
    assert output == tmp_path / "m" / f"org--model--{recipe}"
    assert contents(output) == local
    assert contents(tmp_path / "m").keys() == {f"{output.name}/{name}" for name in local}


def test_shards_without_a_needed_tensor_are_not_downloaded(tmp_path: Path) -> None:
    words = ["--names", "qwen3.6", "--tiny", "--layers", "4", "--order", "natural"]
    source = make(parse_options([*words, "--shards", "12", str(tmp_path / "s")]))
    local = contents(prepare(source, tmp_path / "c"))
    with serve(Hub(source)) as hub, Checkpoint.open(source) as checkpoint:
        assert contents(take(hub, tmp_path / "m")) == local
        shards = [header for header in checkpoint.headers if not is_needed(checkpoint, header.path)]
        assert shards
        for header in shards:
            asked = [byte_range for name, byte_range in hub.requests if name == header.path.name]
            assert asked == ["bytes=0-65535"] or header.file_bytes < 65536


def is_needed(checkpoint: Checkpoint, shard: Path) -> bool:
    return any(
        tensor.identity is not None and tensor.identity.row is not None
        for tensor in checkpoint.tensors.values()
        if tensor.file == shard
    )


def test_never_more_than_two_shards_are_on_the_disk(hub: Hub, tmp_path: Path) -> None:
    shards = tmp_path / "m/org--model--int4/.prepare/shards"
    seen: list[int] = []
    take(hub, tmp_path / "m", progress=lambda *_: seen.append(len(list(shards.iterdir()))))
    assert max(seen) == 2


def test_progress_ends_at_the_totals(hub: Hub, reference: dict[str, bytes], tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    take(hub, tmp_path / "m", progress=lambda *call: calls.append(call))
    total = sum(len(data) for name, data in reference.items() if name != "manifest.json")
    assert calls[-1] == ("prepare", total, total)
    for task in ("download", "prepare"):
        done = [call[1] for call in calls if call[0] == task]
        assert done == sorted(done)
        assert done[-1] == next(call[2] for call in calls if call[0] == task)


@pytest.mark.parametrize("task", ["download", "prepare"])
def test_interrupted_anywhere_it_goes_on(
    hub: Hub, reference: dict[str, bytes], tmp_path: Path, task: str
) -> None:
    hub.faults = [Fault(name, "drop", times=2, after_bytes=70_000) for name in SHARDS]
    number, ends = 1, 0
    while ends == 0:
        try:
            take(hub, tmp_path / "m", progress=Interrupting(task, number))
            ends += 1
        except Interruption:
            number += 3
        assert number < 300
    assert number > 10
    assert contents(tmp_path / "m/org--model--int4") == reference


def test_shards_that_were_converted_are_not_fetched_again(
    hub: Hub, reference: dict[str, bytes], tmp_path: Path
) -> None:
    hub.faults = [Fault(SHARDS[2], "status", skip=1, times=99)]
    with pytest.raises(StorageError, match=f"{SHARDS[2]}: the hub answered 500, 3 times in a row"):
        take(hub, tmp_path / "m")
    work = tmp_path / "m/org--model--int4/.prepare"
    assert json.loads((work / "journal.json").read_text())["shards"] == SHARDS[:2]
    hub.faults.clear()
    hub.requests.clear()
    assert contents(take(hub, tmp_path / "m")) == reference
    assert [name for name, _ in hub.requests] == ["api", *SHARDS[2:]]


def test_the_commit_stays_the_one_that_was_begun_with(
    hub: Hub, reference: dict[str, bytes], tmp_path: Path
) -> None:
    with pytest.raises(Interruption):
        take(hub, tmp_path / "m", progress=Interrupting("prepare", 4))
    hub.commit, hub.old_commits = NEXT_COMMIT, {COMMIT}
    with pytest.raises(ConfigError, match=f"unfinished container of commit {COMMIT}; main is fff"):
        take(hub, tmp_path / "m", revision="main")
    assert contents(take(hub, tmp_path / "m")) == reference


def test_a_lost_temporary_file_is_made_again(
    hub: Hub, reference: dict[str, bytes], tmp_path: Path
) -> None:
    with pytest.raises(Interruption):
        take(hub, tmp_path / "m", progress=Interrupting("prepare", 40))
    parts = sorted((tmp_path / "m/org--model--int4/.prepare").glob("*.s*"))
    assert parts
    parts[-1].unlink()
    (tmp_path / "m/org--model--int4/config.json").unlink()
    assert contents(take(hub, tmp_path / "m")) == reference


def test_a_local_prepare_can_end_what_a_hub_began_and_the_other_way_round(
    hub: Hub, source: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    with pytest.raises(Interruption):
        take(hub, tmp_path, output=tmp_path / "a", progress=Interrupting("prepare", 30))
    assert contents(prepare(source, tmp_path / "a")) == reference
    with pytest.raises(Interruption):
        prepare(source, tmp_path / "b", progress=Interrupting("prepare", 30))
    assert contents(take(hub, tmp_path, output=tmp_path / "b")) == reference


def test_the_checkpoint_is_kept_beside_the_container_if_asked_for(
    hub: Hub, source: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    with pytest.raises(Interruption):
        take(hub, tmp_path / "m", keep_checkpoint=True, progress=Interrupting("prepare", 40))
    output = take(hub, tmp_path / "m")
    assert contents(output) == reference
    assert checkpoint_path(output) == tmp_path / "m/org--model--int4.checkpoint"
    assert contents(checkpoint_path(output)) == contents(source)


def test_a_finished_container_needs_no_hub(
    hub: Hub, reference: dict[str, bytes], tmp_path: Path
) -> None:
    output = take(hub, tmp_path / "m")
    hub.requests.clear()
    assert take(hub, tmp_path / "m") == output
    assert hub.requests == []
    assert take(hub, tmp_path / "m", revision=COMMIT) == output
    assert contents(output) == reference


def test_a_finished_container_of_another_model_is_left_alone(
    damaged: Hub, source: Path, tmp_path: Path
) -> None:
    prepare(source, tmp_path / "c")
    config = json.loads((damaged.directory / "config.json").read_text())
    (damaged.directory / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    before = contents(tmp_path / "c")
    with pytest.raises(ConfigError, match="of another checkpoint or recipe"):
        take(damaged, tmp_path / "m", output=tmp_path / "c")
    assert contents(tmp_path / "c") == before


def test_a_directory_with_other_things_is_refused_untouched(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"not empty \(thesis\.txt\)"):
        take(hub, tmp_path / "m", output=tmp_path / "c")
    assert contents(tmp_path / "c") == {"thesis.txt": b"mine"}
    assert hub.requests == []


def test_an_unfinished_container_of_another_model_is_not_continued(
    hub: Hub, tmp_path: Path
) -> None:
    with pytest.raises(Interruption):
        take(hub, tmp_path, output=tmp_path / "c", progress=Interrupting("prepare", 4))
    with pytest.raises(ConfigError, match="of another model"):
        prepare_from_hub("org/other", tmp_path, output=tmp_path / "c", endpoint=hub.url)


@pytest.mark.parametrize("text", ["", "{", "{}", '{"repo_id": "org/model", "commit": "../main"}'])
def test_a_damaged_note_of_the_commit_is_refused(hub: Hub, tmp_path: Path, text: str) -> None:
    with pytest.raises(Interruption):
        take(hub, tmp_path, output=tmp_path / "c", progress=Interrupting("prepare", 4))
    (tmp_path / "c/.prepare/hub.json").write_text(text)
    with pytest.raises((ContainerError, ConfigError), match=r"remove|hub\.json"):
        take(hub, tmp_path, output=tmp_path / "c")


def test_a_wrong_checksum_names_the_shard_and_keeps_what_was_done(
    hub: Hub, reference: dict[str, bytes], tmp_path: Path
) -> None:
    large = max(SHARDS[1:], key=lambda name: (hub.directory / name).stat().st_size)
    hub.faults = [
        Fault(large, "flip", skip=1, times=3, after_bytes=70_000),
    ]
    with pytest.raises(CheckpointError, match=rf"{large}: SHA-256 is"):
        take(hub, tmp_path / "m")
    journal = json.loads((tmp_path / "m/org--model--int4/.prepare/journal.json").read_text())
    assert journal["shards"] == [name for name in SHARDS if name < large]
    hub.faults.clear()
    assert contents(take(hub, tmp_path / "m")) == reference


def test_a_header_that_differs_from_the_shard_s_is_refused(hub: Hub, tmp_path: Path) -> None:
    raw = (hub.directory / SHARDS[0]).read_bytes()
    hub.faults = [Fault(SHARDS[0], "flip", after_bytes=raw.index(b'"pt"') + 1)]
    with pytest.raises(CheckpointError, match="the header is not the one that the hub sent before"):
        take(hub, tmp_path / "m")


def test_a_damaged_weight_is_named(damaged: Hub, tmp_path: Path) -> None:
    with Checkpoint.open(damaged.directory) as checkpoint:
        tensor = checkpoint.find("norm.weight")
        assert tensor is not None
    with tensor.file.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(b"\x80\x7f")
    with pytest.raises(CheckpointError, match=r"norm\.weight.*not finite"):
        take(damaged, tmp_path / "m")


def test_a_model_that_is_not_supported_leaves_nothing(damaged: Hub, tmp_path: Path) -> None:
    config = json.loads((damaged.directory / "config.json").read_text())
    config["model_type"] = "gpt_oss"
    (damaged.directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError):
        take(damaged, tmp_path / "m")
    assert contents(tmp_path / "m") == {}
    assert not container_path(tmp_path / "m", "org/model", "int4").exists()


@pytest.mark.parametrize("keep", [False, True])
def test_too_little_space_is_refused_with_the_sum_before_the_download(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keep: bool
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    message = "for the container.*for the checkpoint" if keep else "for the container.*for 2 shards"
    with pytest.raises(BudgetError, match=message) as caught:
        take(hub, tmp_path / "m", keep_checkpoint=keep)
    sizes = sorted((hub.directory / name).stat().st_size for name in SHARDS)
    shards = sum(sizes) if keep else sum(sizes[-2:])
    assert caught.value.needed_bytes is not None
    assert caught.value.needed_bytes > shards
    assert contents(tmp_path / "m") == {}


def test_a_model_that_is_not_there_leaves_nothing(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such model"):
        prepare_from_hub("org/none", tmp_path / "m", endpoint=hub.url, patience=QUICK)
    assert contents(tmp_path / "m") == {}


def test_a_second_writer_is_refused(hub: Hub, tmp_path: Path) -> None:
    def second(task: str, done: int, total: int) -> None:
        with pytest.raises(StorageError, match="another process is preparing"):
            take(hub, tmp_path / "m")
        raise Interruption

    with pytest.raises(Interruption):
        take(hub, tmp_path / "m", progress=second)


def test_a_shard_of_wrong_facts_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.overrides = {SHARDS[1]: {"lfs": {"size": 10, "sha256": "0" * 64, "pointerSize": 1}}}
    with pytest.raises(SparseFlowError, match="in a file of 10"):
        take(hub, tmp_path / "m")
