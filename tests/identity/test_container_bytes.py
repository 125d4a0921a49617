"""The bytes of a container are a function of checkpoint and recipe: neither threads nor instruction set change one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparseflow.container.recipes import RECIPES
from sparseflow.native import _ext
from sparseflow.prepare import pipeline
from sparseflow.prepare.prepare import prepare


def contents(container: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(container)): path.read_bytes()
        for path in container.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_container_bytes_depend_on_neither_threads_nor_isa(
    recipe: str, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = contents(prepare(tiny_checkpoint, tmp_path / "baseline", recipe))
    quantize_weights = _ext.quantize_weights
    for number, isa in enumerate(_ext.isa_names()):
        threads = 1 + 2 * number
        monkeypatch.setattr(pipeline, "default_threads", lambda threads=threads: threads)
        monkeypatch.setattr(
            _ext, "quantize_weights", lambda f, w, isa=isa: quantize_weights(f, w, isa)
        )
        assert contents(prepare(tiny_checkpoint, tmp_path / isa, recipe)) == expected
