"""Headers and files from a hub: what may pass is tried again, the rest is one clear error, hostile bytes refused."""

from __future__ import annotations

import filecmp
import json
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from hub_server import COMMIT, Fault, Hub, serve

from make_synthetic_checkpoint import make, parse_options
from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.hub import HubRepo, fetch_headers, open_hub
from sparseflow.checkpoint.hub_download import download
from sparseflow.checkpoint.transfer import Patience
from sparseflow.errors import CheckpointError, ConfigError, SparseFlowError, StorageError

SHARD = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"
QUICK = Patience(tries=4, first_wait=0.005)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer in three shards."""
    words = ["--tiny", "--layers", "1", "--order", "adversarial", "--shards", "3"]
    return make(parse_options([*words, str(tmp_path_factory.mktemp("source"))]))


@pytest.fixture
def hub(source: Path) -> Iterator[Hub]:
    """Serves the checkpoint."""
    with serve(Hub(source)) as hub:
        yield hub


@pytest.fixture
def damaged(source: Path, tmp_path: Path) -> Iterator[Hub]:
    """Serves a copy that a test may change."""
    shutil.copytree(source, tmp_path / "damaged")
    with serve(Hub(tmp_path / "damaged")) as hub:
        yield hub


def opened(hub: Hub, revision: str | None = None, token: str | None = None) -> HubRepo:
    return open_hub(hub.repo_id, revision, endpoint=hub.url, token=token, patience=QUICK)


def fetched(hub: Hub, directory: Path) -> Checkpoint:
    """The checkpoint without its payload."""
    return Checkpoint.open(fetch_headers(opened(hub), directory))


def test_files_have_sizes_and_hashes_and_the_branch_is_pinned(hub: Hub, source: Path) -> None:
    repo = opened(hub)
    assert repo.commit == COMMIT
    assert {name: file.nbytes for name, file in repo.files.items()} == {
        path.name: path.stat().st_size for path in source.iterdir()
    }
    assert repo.get(SHARD).sha256 is not None
    assert repo.get("config.json").git_sha1 is not None
    assert COMMIT in repo.url(SHARD)


def test_headers_are_a_checkpoint_whose_payload_is_a_hole(
    hub: Hub, source: Path, tmp_path: Path
) -> None:
    with fetched(hub, tmp_path / "h") as ours, Checkpoint.open(source) as theirs:
        assert [h.sha256 for h in ours.headers] == [h.sha256 for h in theirs.headers]
        assert [h.file_bytes for h in ours.headers] == [h.file_bytes for h in theirs.headers]
    assert filecmp.cmp(source / "tokenizer.json", tmp_path / "h/tokenizer.json", shallow=False)
    assert {path.name for path in (tmp_path / "h").iterdir()} == {p.name for p in source.iterdir()}


def test_headers_that_are_here_are_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    fetched(hub, tmp_path / "h").close()
    hub.requests.clear()
    fetched(hub, tmp_path / "h").close()
    assert hub.requests == [("api", None)]


def test_a_header_longer_than_the_first_range_is_fetched_whole(
    hub: Hub, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparseflow.checkpoint.hub.FIRST_HEADER_BYTES", 100)
    with fetched(hub, tmp_path / "h") as ours, Checkpoint.open(source) as theirs:
        assert [h.sha256 for h in ours.headers] == [h.sha256 for h in theirs.headers]
    assert hub.total_served < sum(path.stat().st_size for path in source.iterdir()) / 4


def test_one_shard_without_an_index_is_read(tmp_path: Path) -> None:
    words = ["--tiny", "--layers", "1", "--shards", "1", str(tmp_path / "s")]
    with serve(Hub(make(parse_options(words)))) as hub, fetched(hub, tmp_path / "h") as checkpoint:
        assert [header.path.name for header in checkpoint.headers] == ["model.safetensors"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("api", "status", times=2, status=503),
        Fault("api", "status", status=429, headers={"Retry-After": "0"}),
        Fault(SHARD, "status", times=3, status=500),
        Fault(SHARD, "status", status=429, headers={"Retry-After": "nonsense"}),
        Fault(SHARD, "drop", times=3, after_bytes=5),
        Fault(SHARD, "ignore-range", times=9),
        Fault("config.json", "drop", times=2, after_bytes=50),
        Fault("config.json", "flip", times=2, after_bytes=20),
    ],
    ids=lambda fault: f"{fault.name[:6]} {fault.kind} {fault.status}",
)
def test_what_passes_is_tried_again(hub: Hub, tmp_path: Path, fault: Fault) -> None:
    hub.faults = [fault]
    fetched(hub, tmp_path / "h").close()
    assert fault.times < 9


def test_a_download_goes_on_after_every_break(hub: Hub, source: Path, tmp_path: Path) -> None:
    hub.faults = [Fault(SHARD, "drop", times=9, after_bytes=20_000)]
    repo = opened(hub)
    seen: list[int] = []
    path = download(repo, repo.get(SHARD), tmp_path / "x", seen.append)
    assert filecmp.cmp(source / SHARD, path, shallow=False)
    assert seen == sorted(seen)
    assert hub.served[SHARD] == repo.get(SHARD).nbytes
    starts = [
        int((asked or "").removeprefix("bytes=").split("-")[0])
        for name, asked in hub.requests
        if name == SHARD
    ]
    assert starts == [20_000 * number for number in range(10)]


def test_a_download_goes_on_with_what_an_earlier_process_left(
    hub: Hub, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes((source / SHARD).read_bytes()[:12_345])
    hub.faults = [Fault(SHARD, "ignore-range")]
    repo = opened(hub)
    assert filecmp.cmp(
        source / SHARD, download(repo, repo.get(SHARD), tmp_path / "x"), shallow=False
    )


def test_wrong_bytes_are_fetched_again_and_named_if_they_stay_wrong(
    hub: Hub, source: Path, tmp_path: Path
) -> None:
    repo = opened(hub)
    hub.faults = [Fault(SHARD, "flip", times=2, after_bytes=20_000)]
    path = download(repo, repo.get(SHARD), tmp_path / "x")
    assert filecmp.cmp(source / SHARD, path, shallow=False)
    hub.faults = [Fault(SHARD, "flip", times=3, after_bytes=20_000)]
    with pytest.raises(
        CheckpointError, match=rf"{SHARD}: SHA-256 is \w+, the hub says \w+, 3 times"
    ):
        download(repo, repo.get(SHARD), tmp_path / "y")
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    "headers", [{"Retry-After": "1"}, {"RateLimit": '"api";r=0;t=1'}], ids=["after", "limit"]
)
def test_the_wait_that_the_hub_asks_for_is_kept(hub: Hub, headers: dict[str, str]) -> None:
    hub.faults = [Fault("api", "status", status=429, headers=headers)]
    begin = time.monotonic()
    opened(hub)
    assert time.monotonic() - begin >= 1


def test_the_wait_that_the_hub_asks_for_has_an_end(hub: Hub) -> None:
    hub.faults = [Fault("api", "status", status=429, headers={"Retry-After": "999999"})]
    open_hub(hub.repo_id, endpoint=hub.url, patience=Patience(longest_asked=0.01, first_wait=0.01))


def test_offline_mode_is_kept(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        opened(hub)


@pytest.mark.parametrize("kind", ["status", "drop", "cut"])
def test_patience_ends_with_a_storage_error(hub: Hub, tmp_path: Path, kind: str) -> None:
    hub.faults = [Fault(SHARD, kind, times=99, after_bytes=0)]
    with pytest.raises(StorageError, match=rf"{SHARD}: .*4 times in a row; try the same command"):
        fetched(hub, tmp_path / "h")


def test_a_hub_that_is_not_there_is_a_storage_error() -> None:
    with pytest.raises(StorageError, match="connection failed"):
        open_hub("org/model", endpoint="http://127.0.0.1:9", patience=QUICK)


def test_a_download_ends_when_it_is_told_to(hub: Hub, tmp_path: Path) -> None:
    repo, stop = opened(hub), threading.Event()
    hub.faults = [Fault(SHARD, "status", times=99, status=503)]
    stop.set()
    with pytest.raises(CancelledError):
        download(repo, repo.get(SHARD), tmp_path / "x", stop=stop)


def test_the_token_is_sent_to_the_hub_and_not_to_where_it_redirects(
    hub: Hub, tmp_path: Path
) -> None:
    hub.token = "secret"
    repo = opened(hub, token="secret")
    fetch_headers(repo, tmp_path / "h")
    assert set(hub.tokens_at_cdn) == {""}
    assert "secret" not in repr(repo)


@pytest.mark.parametrize(
    ("repo_id", "revision", "message"),
    [
        ("org/none", None, "no such model on the hub"),
        ("org/model", "v2", "no such model with a revision 'v2'"),
        ("org/a/b", None, "no name of a model"),
    ],
)
def test_what_is_not_on_the_hub_is_a_config_error(
    hub: Hub, repo_id: str, revision: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_hub(repo_id, revision, endpoint=hub.url, patience=QUICK)


@pytest.mark.parametrize("name", ["api", SHARD])
@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_model_says_what_to_do(hub: Hub, tmp_path: Path, name: str, status: int) -> None:
    hub.faults = [Fault(name, "status", status=status)]
    with pytest.raises(
        ConfigError, match=r"gated one; ask for access on its page, and set HF_TOKEN"
    ):
        fetched(hub, tmp_path / "h")


@pytest.mark.parametrize(
    ("name", "facts", "message"),
    [
        (SHARD, {"lfs": {"size": -1, "sha256": "0" * 64, "pointerSize": 1}}, "size of -1"),
        (SHARD, {"lfs": {"size": 10, "sha256": "../x", "pointerSize": 1}}, "no SHA-256"),
        ("config.json", {"size": None}, "size of None"),
        ("config.json", {"size": 65 << 20}, "at most 67108864 are read"),
        (INDEX, {"size": 33 << 20}, "at most 33554432 are read"),
        ("config.json", {"size": "x"}, "size of x"),
    ],
)
def test_facts_that_make_no_sense_are_refused(
    hub: Hub, tmp_path: Path, name: str, facts: dict[str, object], message: str
) -> None:
    hub.overrides = {name: facts}
    with pytest.raises(CheckpointError, match=message):
        fetched(hub, tmp_path / "h")


def test_an_index_may_not_lead_away(damaged: Hub, tmp_path: Path) -> None:
    index = {"weight_map": {"a": "../../etc/passwd.safetensors"}}
    (damaged.directory / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="only plain file names"):
        fetched(damaged, tmp_path / "h")


def test_a_shard_that_the_hub_does_not_have_is_named(damaged: Hub, tmp_path: Path) -> None:
    (damaged.directory / SHARD).unlink()
    with pytest.raises(CheckpointError, match=f"no file '{SHARD}'"):
        fetched(damaged, tmp_path / "h")


def test_a_repository_without_safetensors_is_refused(damaged: Hub, tmp_path: Path) -> None:
    (damaged.directory / INDEX).unlink()
    with pytest.raises(CheckpointError, match="no weights to read"):
        fetched(damaged, tmp_path / "h")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "header of 0 bytes in a file of 0"),
        (b"\xff" * 8 + b"x" * 100, "the file is cut or is not safetensors"),
        ((1 << 12).to_bytes(8, "little") + b"{}", "header of 4096 bytes"),
        ((2).to_bytes(8, "little") + b"[]", "not a JSON object"),
    ],
)
def test_hostile_headers_are_refused_as_those_of_files(
    damaged: Hub, tmp_path: Path, header: bytes, message: str
) -> None:
    (damaged.directory / SHARD).write_bytes(header)
    with pytest.raises(CheckpointError, match=message):
        fetched(damaged, tmp_path / "h")


def test_a_header_of_forty_gigabytes_is_not_fetched(hub: Hub, tmp_path: Path) -> None:
    hub.overrides = {SHARD: {"lfs": {"size": 1 << 40, "sha256": "0" * 64, "pointerSize": 1}}}
    hub.faults = [Fault(SHARD, "flip", after_bytes=4)]
    with pytest.raises(SparseFlowError):
        fetched(hub, tmp_path / "h")
    assert hub.served[SHARD] <= 64 << 10
