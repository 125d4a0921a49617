"""What `import sparseflow` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import sparseflow
from sparseflow.errors import ConfigError


def test_load_opens_a_container_and_generates(tiny_moe: Path) -> None:
    params = sparseflow.SamplingParams(max_new_tokens=3, temperature=0.0, ignore_eos=True)
    with sparseflow.load(str(tiny_moe), ctx=64, threads=1) as engine:
        assert isinstance(engine, sparseflow.Engine)
        assert len(list(engine.generate("the king", params))) == 3
        assert engine.stats().store == "resident"


def test_load_streams_if_the_cache_is_small(tiny_moe: Path) -> None:
    options = {"ctx": 64, "threads": 1, "cache_bytes": 200_000, "heat_dir": None}
    params = sparseflow.SamplingParams(max_new_tokens=3, temperature=0.0, ignore_eos=True)
    with sparseflow.load(str(tiny_moe), **options) as engine:
        list(engine.generate("the king", params))
        assert engine.stats().store == "streaming"
        assert engine.stats().experts.misses > 0


def test_an_unknown_option_is_refused_by_name(tiny_moe: Path) -> None:
    with pytest.raises(ConfigError, match="cash_bytes"):
        sparseflow.load(str(tiny_moe), cash_bytes=1)


def test_an_unknown_model_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no-such-model"):
        sparseflow.load("no-such-model")


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        sparseflow.Nothing  # noqa: B018 - __getattr__ raises


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys, sparseflow; "
        "print([m for m in ('numpy', 'tokenizers', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
