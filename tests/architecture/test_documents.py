"""The documents tell the truth: packages are on the map, CI runs the README's commands, claims have commands."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sparseflow"


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_package_has_its_line_in_the_architecture_page() -> None:
    page = _read("ARCHITECTURE.md")
    packages = [p.parent.name for p in SOURCE.glob("*/__init__.py")]
    missing = [name for name in packages if f"| `sparseflow.{name}` |" not in page]
    assert packages
    assert not missing


def test_every_native_folder_has_its_line_in_the_architecture_page() -> None:
    page = _read("ARCHITECTURE.md")
    missing = [
        p.name for p in (ROOT / "native" / "src").iterdir() if f"`native/src/{p.name}`" not in page
    ]
    assert not missing


def test_architecture_page_names_no_package_that_is_gone() -> None:
    named = re.findall(r"\| `sparseflow\.(\w+)` \|", _read("ARCHITECTURE.md"))
    assert [name for name in named if not (SOURCE / name).is_dir()] == []


def test_life_of_a_token_names_files_that_exist() -> None:
    section = _read("ARCHITECTURE.md").split("## The life of a token")[1].split("\n## ")[0]
    hops = re.findall(r"^\d+\. `([\w/.]+)`", section, flags=re.MULTILINE)
    assert 1 <= len(hops) <= 9
    for hop in hops:
        assert (SOURCE / hop).exists() or (ROOT / hop).exists(), hop


def test_ci_runs_the_test_command_of_the_readme() -> None:
    (command,) = re.findall(r"^(pip install -e .*pytest)$", _read("README.md"), flags=re.MULTILINE)
    assert command in _read(".ci/run")


def test_ci_runs_the_demo_as_the_readme_does() -> None:
    (command,) = re.findall(
        r"^pip install \. && (sparseflow run .*)$", _read("README.md"), flags=re.MULTILINE
    )
    assert command in _read(".ci/run")


def test_changelog_has_the_version() -> None:
    version = tomllib.loads(_read("pyproject.toml"))["project"]["version"]
    assert f"## {version}" in _read("CHANGELOG.md")


def test_picture_is_what_its_tool_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "draw_architecture.py"))
    monkeypatch.setitem(tool["main"].__globals__, "OUTPUT", tmp_path / "architecture.svg")
    tool["main"]()
    assert (tmp_path / "architecture.svg").read_text(encoding="utf-8") == _read(
        "docs/images/architecture.svg"
    )


@pytest.mark.parametrize(
    "command",
    [
        'sparseflow run demo "Once upon a time"',
        "pip install -e '.[test]' && pytest",
        "pytest tests/golden",
        "pytest -m reference",
        "sparseflow eval perplexity demo:bf16 demo:int8",
        "sparseflow verify demo --ladder",
        "qemu-x86_64 -cpu Nehalem",
        "qemu-x86_64 -cpu Haswell",
        "tools/make_synthetic_checkpoint.py --names qwen3.6 --tiny",
        "inspect --expert 0:17",
        "SIGKILL",
        "pytest tests/malformed",
        "sparseflow bench --report targets --suite",
        "--check-chain 64 --peer llama.cpp=",
        "--reference SLICE_BF16",
        "pytest tests/unit/tools/test_synthetic_chain.py",
        "--report-routing",
        "check_converter.py",
        "--sweep-cache --plot",
        "python benchmarks/soak.py",
        "python benchmarks/pressure.py",
        "pytest tests/identity/test_faults.py",
        "sparseflow replay ROUTES --capacity 13.3%",
        "pytest tests/unit/engine/test_prefill.py",
        "pytest tests/unit/experts/test_heat.py",
        "pytest tests/contracts/test_read_engines.py",
        "--budgets floor,900M,1500M,2500M,resident --prompt 4000 --new 300 --sweep-cache",
        "--ram $((floor-1))",
        "sparseflow plan D --machine ram=8GiB",
        "pytest -m slow tests/regressions/test_hub_resume.py",
        "--check-counters",
    ],
)
def test_acceptance_page_has_the_command_of_every_claim(command: str) -> None:
    assert command in _read("docs/acceptance.md")


def test_links_between_documents_lead_somewhere() -> None:
    for page in (
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "docs/acceptance.md",
        "docs/memory.md",
    ):
        for target in re.findall(r"\]\(([^)#]+)\)", _read(page)):
            if "://" not in target:
                assert (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"
