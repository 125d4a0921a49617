"""The script that runs llama.cpp: what it refuses, and how it reads what its driver prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peers.llama_cpp import find_headers, find_libraries, main, read_facts


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """What looks like a build tree with its sources elsewhere."""
    source, tree = tmp_path / "source", tmp_path / "build"
    for directory in (source / "include", source / "ggml" / "include", tree / "bin"):
        directory.mkdir(parents=True)
    (source / "include" / "llama.h").touch()
    (tree / "bin" / "libllama.so").touch()
    (tree / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={source}\n")
    return tree


def arguments(build: Path, **changed: Path) -> list[str]:
    paths = {
        "build": build,
        "gguf": build / "m.gguf",
        "prompt": build / "p.json",
        "json": build / "o",
    }
    return ["run", *(f"--{name}={path}" for name, path in {**paths, **changed}.items())]


def test_a_build_tree_names_its_sources(build: Path) -> None:
    source = build.parent / "source"
    assert find_headers(build) == [source / "include", source / "ggml" / "include"]
    assert find_libraries(build) == build / "bin"


def test_an_install_tree_has_its_own_headers(tmp_path: Path) -> None:
    for name in ("include/llama.h", "lib/libllama.so"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert find_headers(tmp_path) == [tmp_path / "include"]
    assert find_libraries(tmp_path) == tmp_path / "lib"


def test_what_is_no_build_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "no llama.h" in line
    assert "install prefix" in line


def test_a_build_without_shared_libraries_is_refused_in_one_line(
    build: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (build / "bin" / "libllama.so").unlink()
    assert main(arguments(build)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "BUILD_SHARED_LIBS" in line


def test_a_driver_that_does_not_compile_is_one_line(
    build: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(build / "cache"))
    (build.parent / "source" / "include" / "llama.h").write_text("#error an old header\n")
    assert main(arguments(build)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "does not compile" in line
    assert not list((build / "cache").rglob("llama-driver-*"))


def test_facts_are_read_from_the_driver_s_lines() -> None:
    output = "version 1.2 (abc)\nload 0.5\nprefill 2.0\nwarm 7 0.25\ntoken 8 0.125\ntoken 9 0.5\n"
    assert read_facts(output) == {
        "version": "1.2 (abc)",
        "load_seconds": 0.5,
        "prefill_seconds": 2.0,
        "warm_ids": [7],
        "warm_seconds": [0.25],
        "ids": [8, 9],
        "token_seconds": [0.125, 0.5],
    }


@pytest.mark.parametrize("document", ["{", "[]", '{"ids": ["1"]}', '{"ids": 3}', "null"])
def test_a_prompt_without_ids_is_refused(
    build: Path,
    document: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from peers import llama_cpp

    monkeypatch.setattr(llama_cpp, "build_driver", lambda build: build)
    prompt = build / "p.json"
    prompt.write_text(document)
    assert main(arguments(build)) == 1
    assert str(prompt) in capsys.readouterr().err


def test_a_model_that_is_not_there_is_one_line(
    build: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from peers import llama_cpp

    monkeypatch.setattr(llama_cpp, "build_driver", lambda build: build)
    (build / "p.json").write_text(json.dumps([1, 2]))
    assert main(arguments(build)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "m.gguf: no such file" in line
