from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from sparseflow.config import EngineConfig
from sparseflow.engine.engine import Engine
from sparseflow.errors import ContainerError, UnsupportedError
from sparseflow.models.registry import create_model


def test_an_unknown_family_names_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"'llama'.*known: mixtral, qwen3_5_moe"):
        create_model("llama", cast(Any, None))


@pytest.mark.parametrize(
    ("field", "value", "other", "tensor"),
    [
        ("shared_expert_intermediate_size", "40", "48", r"shared_expert\.gate_proj"),
        ("head_dim", "32", "48", r"self_attn\.q_proj"),
        ("linear_value_head_dim", "32", "16", r"linear_attn\.in_proj_qkv"),
        ("linear_conv_kernel_dim", "4", "3", r"linear_attn\.conv1d"),
    ],
)
def test_sizes_that_contradict_the_weights_are_refused(
    tiny_moe: Path, tmp_path: Path, field: str, value: str, other: str, tensor: str
) -> None:
    container = shutil.copytree(tiny_moe, tmp_path / "container")
    config = (container / "config.json").read_text()
    changed = config.replace(f'"{field}": {value}', f'"{field}": {other}')
    assert changed != config
    (container / "config.json").write_text(changed)
    with pytest.raises(ContainerError, match=tensor):
        Engine.open(container, EngineConfig(ctx=64, threads=1))
