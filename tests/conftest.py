"""Containers that many tests share: the golden model in each recipe, prepared once a session."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparseflow.prepare.prepare import prepare

GOLDEN = Path(__file__).parent / "golden" / "tiny"
GOLDEN_MIXTRAL = GOLDEN.with_name("tiny_mixtral")

# A shell starts background jobs with Ctrl-C ignored, and so would be every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees, or leaves, a model or a heat table in the home of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSEFLOW_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Path:
    """The golden model's checkpoint: 3 delta layers and 1 attention layer, 12 experts, odd sizes."""
    return GOLDEN


@pytest.fixture(scope="session")
def tiny_bf16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model as a bf16 container."""
    return prepare(GOLDEN, tmp_path_factory.mktemp("containers") / "tiny-bf16", recipe="bf16")


@pytest.fixture(scope="session")
def tiny_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model as an int8 container."""
    return prepare(GOLDEN, tmp_path_factory.mktemp("containers") / "tiny-int8", recipe="int8")


@pytest.fixture(scope="session")
def tiny_int4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model as an int4 container."""
    return prepare(GOLDEN, tmp_path_factory.mktemp("containers") / "tiny-int4", recipe="int4")


@pytest.fixture(scope="session")
def tiny_int4_small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model as an int4-small container."""
    path = tmp_path_factory.mktemp("containers") / "tiny-int4-small"
    return prepare(GOLDEN, path, recipe="int4-small")


@pytest.fixture(scope="session")
def mixtral_checkpoint() -> Path:
    """The golden Mixtral model: 2 layers, grouped queries, 11 experts one by one, odd sizes."""
    return GOLDEN_MIXTRAL


@pytest.fixture(scope="session")
def mixtral_bf16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden Mixtral model as a bf16 container."""
    return prepare(GOLDEN_MIXTRAL, tmp_path_factory.mktemp("containers") / "mixtral-bf16", "bf16")


@pytest.fixture(scope="session")
def mixtral_int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden Mixtral model as an int8 container."""
    return prepare(GOLDEN_MIXTRAL, tmp_path_factory.mktemp("containers") / "mixtral-int8", "int8")
