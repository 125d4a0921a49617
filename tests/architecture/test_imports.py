"""Imports point down the layers of pyproject.toml; import-linter checks the same in CI, this needs no extra package."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sparseflow"
MODULES = sorted(SOURCE.rglob("*.py"))
HEAVY = {"torch", "transformers", "ray"}


def _layers() -> list[set[str]]:
    """Names on each layer, from the top down."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [
        c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers"
    ]
    return [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]


def _imports(path: Path) -> set[str]:
    """Dotted names that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def _layer_name(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def test_every_package_is_on_a_layer() -> None:
    on_layers = set().union(*_layers())
    names = {_layer_name(path) for path in MODULES} - {"__init__"}
    assert names <= on_layers, f"not in pyproject.toml: {sorted(names - on_layers)}"


def test_imports_point_down() -> None:
    rank = {name: number for number, layer in enumerate(_layers()) for name in layer}
    upward = []
    for path in MODULES:
        own = _layer_name(path)
        if own == "__init__":
            continue
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] == "sparseflow" and len(parts) > 1 and parts[1] in rank:
                other = parts[1]
                if other != own and rank[other] <= rank[own]:
                    upward.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not upward, "\n".join(upward)


def test_no_heavy_framework_is_imported_outside_integrations_and_tools() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in MODULES
        if _layer_name(path) != "integrations"
        for name in _imports(path)
        if name.split(".")[0] in HEAVY
    ]
    assert not wrong, "\n".join(wrong)


def test_families_do_not_know_each_other() -> None:
    shared = {"__init__", "base", "fields", "registry"}
    families = {p.stem for p in (SOURCE / "models").glob("*.py")} - shared
    wrong = []
    for family in families:
        for name in _imports(SOURCE / "models" / f"{family}.py"):
            other = name.removeprefix("sparseflow.models.").split(".")[0]
            if (
                name.startswith("sparseflow.models.")
                and other in families
                and not _is_same(family, other)
            ):
                wrong.append(f"{family} imports {other}")
    assert not wrong, "\n".join(wrong)


def _is_same(family: str, other: str) -> bool:
    """A family may have a file beside it, such as qwen3_5_moe_config."""
    return other.startswith(family) or family.startswith(other)
