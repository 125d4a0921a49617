"""Names of a hub's models and their directories: one to one, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparseflow.container.hub_names import (
    HubName,
    checkpoint_path,
    container_path,
    parse_hub_name,
    shown_name,
)

REPO = "Qwen/Qwen3.6-35B-A3B"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (REPO, HubName(REPO)),
        (f"{REPO}:int4-small", HubName(REPO, recipe="int4-small")),
        (f"{REPO}@v1.0", HubName(REPO, revision="v1.0")),
        (f"{REPO}@refs/pr/3", HubName(REPO, revision="refs/pr/3")),
        (f"{REPO}:int8@main", HubName(REPO, "int8", "main")),
        ("a/b", HubName("a/b")),
    ],
)
def test_names_are_read(text: str, name: HubName) -> None:
    assert parse_hub_name(text) == name


@pytest.mark.parametrize(
    "text",
    ["", "demo", "demo:int4", "a/b/c", "/a/b", "../b", "a/..", "a--b/c", "a/b c", "a/b:", "a/b@",
     "./a", "a/", "a/.b", "a/b-", "https://a/b", "a/b\n", "é/b"],
)  # fmt: skip
def test_other_words_are_none(text: str) -> None:
    assert parse_hub_name(text) is None


def test_directories_and_names_are_one_to_one() -> None:
    path = container_path(Path("m"), REPO, "int4-small")
    assert path == Path("m/Qwen--Qwen3.6-35B-A3B--int4-small")
    assert shown_name(path) == f"{REPO}:int4-small"
    assert checkpoint_path(path) == Path("m/Qwen--Qwen3.6-35B-A3B--int4-small.checkpoint")


@pytest.mark.parametrize("name", ["tiny", "a--b", "a--b--c--d", "a--b--int5", "--b--int4"])
def test_other_directories_keep_their_names(name: str) -> None:
    assert shown_name(Path(name)) == name
