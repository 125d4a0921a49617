"""What a MODEL argument means, and what is said about one that means nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from make_synthetic_checkpoint import make, parse_options
from sparseflow.errors import ConfigError, ContainerError
from sparseflow.prepare.models import resolve_model
from sparseflow.prepare.prepare import prepare


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint."""
    return make(parse_options(["--tiny", "--layers", "1", str(tmp_path_factory.mktemp("source"))]))


@pytest.fixture(scope="module")
def models_dir(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models directory with one container, `little`."""
    directory = tmp_path_factory.mktemp("models")
    prepare(source, directory / "little")
    return directory


def test_a_path_comes_first(models_dir: Path, tmp_path: Path) -> None:
    path = models_dir / "little"
    assert resolve_model(str(path), tmp_path, tmp_path) == path


def test_a_name_is_looked_up_in_the_models_directory(models_dir: Path, tmp_path: Path) -> None:
    assert resolve_model("little", models_dir, tmp_path) == models_dir / "little"


def test_a_checkpoint_is_refused_with_the_command_that_helps(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="first: sparseflow prepare "):
        resolve_model(str(source), tmp_path, tmp_path)


def test_a_directory_that_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match=r"no manifest\.json"):
        resolve_model(str(tmp_path), tmp_path, tmp_path)


def test_a_hub_s_model_that_is_not_here_says_how_to_get_it(
    models_dir: Path, tmp_path: Path
) -> None:
    name = "Qwen/Qwen3.6-35B-A3B"
    with pytest.raises(ConfigError, match=f"sparseflow prepare {name} --recipe int4"):
        resolve_model(name, models_dir, tmp_path)
    with pytest.raises(ConfigError, match=f"sparseflow prepare {name} --recipe int8"):
        resolve_model(f"{name}:int8", models_dir, tmp_path)
    with pytest.raises(ConfigError, match="unknown recipe 'int5'"):
        resolve_model(f"{name}:int5", models_dir, tmp_path)


def test_a_hub_s_model_without_a_recipe_is_the_one_that_is_prepared_or_the_default(
    tmp_path: Path,
) -> None:
    def found(name: str, recipe: str | None = None) -> str:
        return resolve_model(name, tmp_path, tmp_path, recipe).name

    def add(recipe: str) -> None:
        (tmp_path / f"org--model--{recipe}").mkdir()
        (tmp_path / f"org--model--{recipe}" / "manifest.json").touch()

    add("int8")
    assert found("org/model") == found("org/model:int8") == "org--model--int8"
    add("bf16")
    with pytest.raises(ConfigError, match="org/model:bf16, org/model:int8; name one"):
        found("org/model")
    assert found("org/model", "bf16") == "org--model--bf16"
    add("int4")
    assert found("org/model") == "org--model--int4"


@pytest.mark.parametrize("name", ["Once upon a time", "nothing", "../little/../x", "a/b/c"])
def test_anything_else_is_taken_for_a_prompt(models_dir: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="did you mean: sparseflow run demo"):
        resolve_model(name, models_dir, tmp_path)
