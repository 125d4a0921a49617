"""Rules that a reader would have to enforce otherwise: who prints, who reads the environment, how it is built."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sparseflow"
NATIVE = ROOT / "native"
OUTSIDE_CLI = sorted(p for p in SOURCE.rglob("*.py") if p.relative_to(SOURCE).parts[0] != "cli")
BANNED_NAMES = re.compile(r"^(utils?|helpers?|common|misc|manager)$")


def _nodes(paths: list[Path]) -> Iterator[tuple[Path, ast.AST]]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path, node


def _is_environment(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb")


def _where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def test_only_cli_prints() -> None:
    wrong = [
        _where(path, node)
        for path, node in _nodes(OUTSIDE_CLI)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not wrong


def test_only_cli_reads_the_environment() -> None:
    wrong = [_where(path, node) for path, node in _nodes(OUTSIDE_CLI) if _is_environment(node)]
    assert not wrong


def test_no_environment_variable_but_the_home_directory_is_read() -> None:
    uses = [
        node for _, node in _nodes(sorted((SOURCE / "cli").glob("*.py"))) if _is_environment(node)
    ]
    assert len(uses) == 1
    assert 'os.environ.get("SPARSEFLOW_HOME")' in (SOURCE / "cli" / "options.py").read_text(
        encoding="utf-8"
    )


def test_no_file_is_named_after_nothing() -> None:
    names = [
        p for p in (*SOURCE.rglob("*"), *(NATIVE / "src").rglob("*")) if BANNED_NAMES.match(p.stem)
    ]
    assert not names


@pytest.mark.parametrize("banned", ["-ffast-math", "-march=native", "-funsafe-math", "-Ofast"])
def test_build_uses_no_flag_that_breaks_the_numeric_contract(banned: str) -> None:
    for path in (ROOT / "CMakeLists.txt", ROOT / "pyproject.toml", *NATIVE.rglob("CMakeLists.txt")):
        assert banned not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize(
    "banned",
    [
        r"_mm\d*_rsqrt\w*",
        r"_mm\d*_rcp\w*",
        r"_mm512_reduce_\w+",
        r"\bvrsqrte\w*",
        r"\bvrecpe\w*",
        r"std::reduce\b",
    ],
)
def test_kernels_use_no_approximate_or_compiler_ordered_operation(banned: str) -> None:
    for path in sorted((NATIVE / "src").rglob("*")):
        if path.suffix in (".cc", ".h"):
            match = re.search(banned, path.read_text(encoding="utf-8"))
            assert match is None, f"{path.relative_to(ROOT)}: {match and match[0]}"


def test_nothing_is_left_unfinished() -> None:
    marks = re.compile(r"NotImplementedError|\bTODO\b|\bFIXME\b|\bXXX\b")
    wrong = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (*SOURCE.rglob("*.py"), *NATIVE.rglob("*.cc"), *NATIVE.rglob("*.h"))
        if "third_party" not in path.parts
        for match in marks.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not wrong
