"""prepare: what it leaves behind when it ends, is interrupted, meets a full disk or another writer."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from make_synthetic_checkpoint import make, parse_options
from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.errors import (
    BudgetError,
    CheckpointError,
    ConfigError,
    SparseFlowError,
    StorageError,
    UnsupportedError,
)
from sparseflow.prepare.prepare import prepare

DENSE = "dense.safetensors"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers in three shards, gate_up and down of a layer in different ones."""
    words = ["--tiny", "--order", "adversarial", "--shards", "3"]
    return make(parse_options([*words, str(tmp_path_factory.mktemp("source"))]))


@pytest.fixture(scope="module")
def reference(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every file of the container that an uninterrupted run writes."""
    return contents(prepare(source, tmp_path_factory.mktemp("reference") / "c"))


def contents(directory: Path) -> dict[str, bytes]:
    """All files below a directory, hidden ones included."""
    files = [path for path in directory.rglob("*") if not path.is_dir()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(files)}


@contextmanager
def failing_pwrite(after_bytes: int, number: int) -> Iterator[None]:
    """Inside the block the disk takes so many bytes more and then fails; the last write before is short."""
    real, left = os.pwrite, after_bytes

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        nonlocal left
        if left <= 0:
            raise OSError(number, os.strerror(number))
        written = real(descriptor, data[:left], offset)
        left -= written
        return written

    patch = pytest.MonkeyPatch()
    patch.setattr(os, "pwrite", pwrite)
    try:
        yield
    finally:
        patch.undo()


def test_the_same_checkpoint_gives_the_same_bytes(
    source: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    assert contents(prepare(source, tmp_path / "c")) == reference
    assert set(reference) == {
        "manifest.json",
        "config.json",
        "tokenizer.json",
        DENSE,
        *(f"experts/layer_{i:03d}.sfi" for i in range(4)),
    }


def test_order_and_number_of_shards_change_the_manifest_alone(
    reference: dict[str, bytes], tmp_path: Path
) -> None:
    other = make(parse_options(["--tiny", "--shards", "1", str(tmp_path / "s")]))
    again = contents(prepare(other, tmp_path / "c"))
    assert again.pop("manifest.json") != reference["manifest.json"]
    assert again == {name: data for name, data in reference.items() if name != "manifest.json"}


def test_fused_and_unfused_layouts_give_the_same_experts(tmp_path: Path) -> None:
    unfused = make(
        parse_options(
            ["--tiny", "--layers", "1", "--unfused", "--shards", "1", str(tmp_path / "u")]
        )
    )
    fused = make(parse_options(["--tiny", "--layers", "1", "--shards", "1", str(tmp_path / "f")]))
    fuse_into(unfused, fused)
    for recipe in ("bf16", "int8"):
        first = contents(prepare(unfused, tmp_path / f"u-{recipe}", recipe))
        second = contents(prepare(fused, tmp_path / f"f-{recipe}", recipe))
        assert first["experts/layer_000.sfi"] == second["experts/layer_000.sfi"]


def fuse_into(unfused: Path, fused: Path) -> None:
    """Overwrites the fused checkpoint's experts with those of the unfused one."""
    prefix = "layers.0.mlp.experts."
    with (
        Checkpoint.open(unfused) as source,
        Checkpoint.open(fused) as target,
        target_file(fused) as file,
    ):
        for expert in range(20):
            for name, place in (("gate_proj", 0), ("up_proj", 1), ("down_proj", 0)):
                part = source.find(f"{prefix}{expert}.{name}.weight")
                whole = target.find(
                    prefix + ("down_proj" if name == "down_proj" else "gate_up_proj")
                )
                assert part is not None
                assert whole is not None
                data = bytearray(part.nbytes)
                source.read_into(part.file, part.offset, memoryview(data))
                per_expert = whole.nbytes // 20
                os.pwrite(file, data, whole.offset + expert * per_expert + place * part.nbytes)


@contextmanager
def target_file(checkpoint: Path) -> Iterator[int]:
    descriptor = os.open(checkpoint / "model.safetensors", os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_bf16_experts_are_the_checkpoint_s_own_bytes(source: Path, tmp_path: Path) -> None:
    raw = (prepare(source, tmp_path / "c", "bf16") / "experts/layer_002.sfi").read_bytes()
    with Checkpoint.open(source) as checkpoint:
        gate_up = checkpoint.find("layers.2.mlp.experts.gate_up_proj")
        assert gate_up is not None
        data = bytearray(gate_up.nbytes)
        checkpoint.read_into(gate_up.file, gate_up.offset, memoryview(data))
    for expert in range(20):
        gate = bytes(data[expert * 2 * 5760 :][:5760])
        assert raw.count(gate) == 1
        assert (raw.index(gate) - 4096) % 20480 == 0


def test_a_finished_container_is_left_as_it_is(
    source: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    output = prepare(source, tmp_path / "c")
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    prepare(source, output)
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*") if path != output} == {
        path: time for path, time in before.items() if path != output
    }
    assert contents(output) == reference


def test_a_container_of_another_recipe_is_not_overwritten(source: Path, tmp_path: Path) -> None:
    output = prepare(source, tmp_path / "c", "int8")
    with pytest.raises(ConfigError, match="another checkpoint or recipe"):
        prepare(source, output, "bf16")


def test_a_directory_with_other_things_is_refused_untouched(source: Path, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"not empty \(thesis\.txt\)"):
        prepare(source, tmp_path / "c")
    assert contents(tmp_path / "c") == {"thesis.txt": b"mine"}


def test_output_that_is_a_file_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "c").write_text("mine")
    with pytest.raises(StorageError, match="cannot create"):
        prepare(source, tmp_path / "c")


def test_unknown_recipe_is_refused_with_the_known_ones(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="known: bf16, int8, int4, int4-small"):
        prepare(source, tmp_path / "c", "int5")
    assert not (tmp_path / "c").exists()


def test_full_disk_is_reported_and_the_next_run_goes_on(
    source: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    output = tmp_path / "c"
    after = (
        len(reference["config.json"])
        + len(reference[DENSE])
        + len(reference["experts/layer_000.sfi"])
        + 30_000
    )
    with (
        failing_pwrite(after, errno.ENOSPC),
        pytest.raises(StorageError, match="No space left") as caught,
    ):
        prepare(source, output)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.offset is not None
    assert "more bytes were to be written" in str(caught.value)
    assert set(contents(output)) == {
        "config.json",
        "tokenizer.json",
        DENSE,
        "experts/layer_000.sfi",
        ".prepare/journal.json",
    }
    first = (output / "experts/layer_000.sfi").stat()
    assert contents(prepare(source, output)) == reference
    again = (output / "experts/layer_000.sfi").stat()
    assert (again.st_ino, again.st_mtime_ns) == (first.st_ino, first.st_mtime_ns)


def test_disk_that_is_full_at_once_leaves_nothing(source: Path, tmp_path: Path) -> None:
    with failing_pwrite(10, errno.ENOSPC), pytest.raises(StorageError):
        prepare(source, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_write_error_carries_path_offset_and_errno(source: Path, tmp_path: Path) -> None:
    with failing_pwrite(100_000, errno.EIO), pytest.raises(StorageError) as caught:
        prepare(source, tmp_path / "c")
    assert (caught.value.errno, caught.value.path) == (
        errno.EIO,
        str(tmp_path / "c/.prepare" / DENSE),
    )


@pytest.mark.skipif(
    sys.platform != "linux", reason="a limit on the size of files, as Linux knows it"
)
def test_a_real_limit_of_the_system_is_a_storage_error(
    source: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000));"
        "from sparseflow.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["prepare", str(source), "--output", str(tmp_path / "c")]
    run = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=False
    )
    assert run.returncode == StorageError.exit_code
    assert run.stderr.count("\n") == 1
    assert "File too large" in run.stderr
    assert contents(prepare(source, tmp_path / "c")) == reference


def test_too_little_space_is_refused_with_the_bytes_that_are_missing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(BudgetError, match="bytes missing") as caught:
        prepare(source, tmp_path / "c")
    assert caught.value.available_bytes == 1_000_000
    assert caught.value.needed_bytes is not None
    assert caught.value.needed_bytes > 1_000_000
    assert not (tmp_path / "c").exists()


def test_space_that_finished_files_take_is_not_asked_for_again(
    source: Path, reference: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {name: len(data) for name, data in reference.items()}
    after = sum(sizes.values()) - sizes["experts/layer_003.sfi"] - sizes["manifest.json"] + 10
    with failing_pwrite(after, errno.ENOSPC), pytest.raises(StorageError):
        prepare(source, tmp_path / "c")
    usage = shutil.disk_usage(tmp_path)
    enough = sizes["experts/layer_003.sfi"] + (4 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=enough))
    assert contents(prepare(source, tmp_path / "c")) == reference


def test_a_second_writer_is_refused(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "c"
    output.mkdir()
    descriptor = os.open(output, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="another process is preparing"):
            prepare(source, output)
    finally:
        os.close(descriptor)
    assert contents(output) == {}


def test_writers_that_wait_for_each_other_leave_one_container(
    source: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    script = (
        "import sys; from pathlib import Path; from sparseflow.prepare.prepare import prepare;"
        "prepare(Path(sys.argv[1]), Path(sys.argv[2]), wait=True)"
    )
    command = [sys.executable, "-c", script, str(source), str(tmp_path / "c")]
    writers = [subprocess.Popen(command) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert contents(tmp_path / "c") == reference


def test_an_unfinished_container_of_another_recipe_is_not_continued(
    source: Path, tmp_path: Path
) -> None:
    with failing_pwrite(400_000, errno.ENOSPC), pytest.raises(StorageError):
        prepare(source, tmp_path / "c", "int8")
    before = contents(tmp_path / "c")
    with pytest.raises(ConfigError, match="unfinished container of another checkpoint or recipe"):
        prepare(source, tmp_path / "c", "bf16")
    assert contents(tmp_path / "c") == before


@pytest.mark.parametrize("name", [DENSE, "experts/layer_000.sfi", "config.json"])
def test_a_finished_file_that_has_gone_is_made_again(
    source: Path, reference: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    with failing_pwrite(900_000, errno.ENOSPC), pytest.raises(StorageError):
        prepare(source, tmp_path / "c")
    (tmp_path / "c" / name).unlink()
    assert contents(prepare(source, tmp_path / "c")) == reference


def test_death_between_journal_and_rename_loses_nothing(
    source: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    output = tmp_path / "c"
    with failing_pwrite(900_000, errno.ENOSPC), pytest.raises(StorageError):
        prepare(source, output)
    (output / "experts/layer_000.sfi").rename(output / ".prepare/experts-layer_000.sfi")
    inode = (output / ".prepare/experts-layer_000.sfi").stat().st_ino
    assert contents(prepare(source, output)) == reference
    assert (output / "experts/layer_000.sfi").stat().st_ino == inode


def test_death_between_manifest_and_clean_up_is_cleaned_up(
    source: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    output = prepare(source, tmp_path / "c")
    (output / ".prepare").mkdir()
    (output / ".prepare/journal.json").write_text("{}")
    assert contents(prepare(source, output)) == reference


def test_death_before_the_first_journal_is_a_fresh_start(
    source: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "c/.prepare").mkdir(parents=True)
    (tmp_path / "c/.prepare/journal.json.new").write_text('{"identi')
    assert contents(prepare(source, tmp_path / "c")) == reference


@pytest.mark.parametrize(
    "text", ["", "{", '{"files": {"a": 1}}', '{"files": {"../../x": [1, "a"]}}']
)
def test_damaged_journal_is_refused(source: Path, tmp_path: Path, text: str) -> None:
    with failing_pwrite(400_000, errno.ENOSPC), pytest.raises(StorageError):
        prepare(source, tmp_path / "c")
    journal = tmp_path / "c/.prepare/journal.json"
    identity = json.loads(journal.read_text())["identity"]
    journal.write_text(
        text.replace("{", f'{{"identity": {json.dumps(identity)}, ', 1) if len(text) > 1 else text
    )
    with pytest.raises(SparseFlowError, match="journal"):
        prepare(source, tmp_path / "c")


def test_progress_ends_at_the_total(
    source: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    calls: list[tuple[str, int, int]] = []
    prepare(source, tmp_path / "c", progress=lambda *call: calls.append(call))
    done = [call[1] for call in calls]
    assert done == sorted(done)
    total = sum(len(data) for name, data in reference.items() if name != "manifest.json")
    assert calls[-1] == ("prepare", total, total)


def damage(source: Path, copy: Path, name: str, bits: int) -> Path:
    """A copy of the checkpoint in which the last value of a tensor is `bits`."""
    shutil.copytree(source, copy)
    with Checkpoint.open(copy) as checkpoint:
        tensor = checkpoint.find(name)
        assert tensor is not None
    with tensor.file.open("r+b") as file:
        file.seek(tensor.offset + tensor.nbytes - 2)
        file.write(np.uint16(bits).tobytes())
    return copy


@pytest.mark.parametrize(
    "name",
    [
        "layers.3.mlp.experts.down_proj",
        "embed_tokens.weight",
        "layers.0.linear_attn.A_log",
        "norm.weight",
    ],
)
def test_weights_that_are_not_finite_are_named_and_nothing_is_left(
    source: Path, tmp_path: Path, name: str
) -> None:
    broken = damage(source, tmp_path / "s", name, 0x7F80)
    with pytest.raises(CheckpointError, match=rf"{name}.*not finite"):
        prepare(broken, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_decay_beyond_float32_is_refused(source: Path, tmp_path: Path) -> None:
    broken = damage(source, tmp_path / "s", "layers.0.linear_attn.A_log", 0x42F0)  # 120
    with pytest.raises(CheckpointError, match=r"A_log.*beyond 80"):
        prepare(broken, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_tensors_that_nothing_claims_are_named_and_refused(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "s")
    for path in (tmp_path / "s").iterdir():
        old, new = b"layers.1.mlp.gate.weight", b"layers.1.mlp.gate.weighs"
        path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(UnsupportedError, match=r"1 tensor\(s\).*gate\.weighs"):
        prepare(tmp_path / "s", tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_tokenizer_files_are_taken_over_and_others_are_not(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "s")
    (tmp_path / "s/tokenizer.json").write_text("{}")
    (tmp_path / "s/chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "s/training.log").write_text("private")
    output = prepare(tmp_path / "s", tmp_path / "c")
    assert (output / "tokenizer.json").read_text() == "{}"
    assert (output / "chat_template.jinja").read_text() == "{{ messages }}"
    assert not (output / "training.log").exists()
