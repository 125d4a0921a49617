"""verify finds every byte that is not what it should be, and says where it is."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from make_synthetic_checkpoint import make, parse_options
from sparseflow.cli.main import main
from sparseflow.container.format import SfiLayout
from sparseflow.container.reader import Container
from sparseflow.container.recipes import RECIPES
from sparseflow.native import _ext
from sparseflow.prepare.prepare import prepare
from sparseflow.prepare.verify import verify


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, two shards."""
    return make(
        parse_options(
            ["--tiny", "--layers", "2", "--shards", "2", str(tmp_path_factory.mktemp("source"))]
        )
    )


@pytest.fixture(scope="module", params=sorted(RECIPES))
def good(
    request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An undamaged container in each recipe."""
    return prepare(source, tmp_path_factory.mktemp("good") / "c", request.param)


@pytest.fixture
def container(good: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(good, tmp_path / "c")


@pytest.fixture
def int8_container(source: Path, tmp_path: Path) -> Path:
    """One with codes and scales, to damage."""
    return prepare(source, tmp_path / "int8", "int8")


def change(path: Path, offset: int, edit: Callable[[int], int] = lambda byte: byte ^ 1) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] = edit(raw[offset])
    path.write_bytes(raw)


def seal(container: Path, name: str) -> None:
    """Gives the manifest the hash that the file has now, so that only deeper checks can find what was changed."""
    path = container / "manifest.json"
    manifest = json.loads(path.read_text())
    raw = (container / name).read_bytes()
    manifest["files"][name] = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    path.write_text(json.dumps(manifest))


def reseal_expert(path: Path, layout: SfiLayout, expert: int) -> None:
    """Gives the .sfi file the hashes that its blob and header have now."""
    raw = bytearray(path.read_bytes())
    begin = layout.blob_offset(expert)
    place = 256 + 8 * expert
    raw[place : place + 8] = _ext.xxh3_64(bytes(raw[begin : begin + layout.blob_bytes])).to_bytes(
        8, "little"
    )
    header = raw[: layout.header_bytes]
    header[160:168] = bytes(8)
    raw[160:168] = _ext.xxh3_64(bytes(header)).to_bytes(8, "little")
    path.write_bytes(raw)


def layout_of(container: Path, layer: int) -> SfiLayout:
    with Container.open(container) as opened:
        return opened.layouts[layer]


def test_an_undamaged_container_is_good(good: Path, source: Path) -> None:
    report = verify(good, source)
    assert report.findings == []
    assert (report.num_files, report.num_experts, report.num_compared) == (5, 40, 5)


def test_a_flipped_payload_bit_is_found_with_its_expert(container: Path) -> None:
    layout = layout_of(container, 1)
    change(container / "experts/layer_001.sfi", layout.blob_offset(7) + layout.sections[2][0] + 5)
    findings = verify(container).findings
    assert len(findings) == 2
    assert "SHA-256" in findings[0]
    assert "layer_001.sfi" in findings[1]
    assert "7" in findings[1]


def test_comparison_names_expert_and_part(container: Path, source: Path) -> None:
    layout = layout_of(container, 1)
    change(container / "experts/layer_001.sfi", layout.blob_offset(7) + layout.sections[2][0] + 5)
    assert any(
        "(expert 1:7, up codes)" in finding for finding in verify(container, source).findings
    )


@pytest.mark.parametrize("name", ["config.json", "dense.safetensors", "experts/layer_000.sfi"])
def test_a_changed_byte_is_found_in_every_file(container: Path, name: str) -> None:
    change(
        container / name,
        (container / name).stat().st_size - 1,
        lambda byte: 32 if byte == 10 else byte ^ 1,
    )
    findings = verify(container).findings
    assert any("SHA-256" in finding and name in finding for finding in findings)


def test_damage_in_blob_padding_is_found_under_good_hashes(container: Path) -> None:
    layout = layout_of(container, 0)
    assert layout.payload_bytes < layout.blob_bytes
    path = container / "experts/layer_000.sfi"
    change(path, layout.blob_offset(3) + layout.payload_bytes)
    reseal_expert(path, layout, 3)
    seal(container, "experts/layer_000.sfi")
    assert len(verify(container).findings) == 1


def test_expert_scale_that_is_not_finite_is_found_under_good_hashes(int8_container: Path) -> None:
    layout = layout_of(int8_container, 0)
    path = int8_container / "experts/layer_000.sfi"
    raw = bytearray(path.read_bytes())
    offset = layout.blob_offset(3) + layout.sections[1][0]
    raw[offset : offset + 4] = np.float32(np.nan).tobytes()
    path.write_bytes(raw)
    reseal_expert(path, layout, 3)
    seal(int8_container, "experts/layer_000.sfi")
    assert len(verify(int8_container).findings) == 1


@pytest.mark.parametrize(
    ("rows", "cols", "name"),
    [(331, 72, "lm_head.weight"), (128, 72, "layers.0.linear_attn.in_proj_qkv.weight")],
)
def test_padding_of_dense_matrices_is_checked(
    int8_container: Path, rows: int, cols: int, name: str
) -> None:
    with Container.open(int8_container) as opened:
        codes = opened.read_entry(name + ".codes")
    raw = (int8_container / "dense.safetensors").read_bytes()
    begin = raw.index(codes.tobytes())
    place = np.arange(codes.size).reshape(-1, 32, 16, 4).transpose(0, 2, 1, 3).reshape(-1, 128)
    inside = {(rows - 1, cols - 1)}
    outside = {(0, cols), (rows - 1, 127)} | ({(rows, 0), (rows + 4, 5)} if rows % 16 else set())
    for row, col in inside | outside:
        change(int8_container / "dense.safetensors", begin + int(place[row, col]))
        seal(int8_container, "dense.safetensors")
        findings = verify(int8_container).findings
        assert len(findings) == ((row, col) in outside), (row, col)
        change(int8_container / "dense.safetensors", begin + int(place[row, col]))


def test_another_checkpoint_is_told_apart(good: Path, source: Path, tmp_path: Path) -> None:
    words = ["--tiny", "--layers", "2", "--shards", "2", "--seed", "9", str(tmp_path / "other")]
    findings = verify(good, make(parse_options(words))).findings
    assert any("layer_000.sfi: differs" in finding for finding in findings)
    shutil.copytree(source, tmp_path / "renamed")
    config = tmp_path / "renamed/config.json"
    config.write_text(config.read_text() + " ")
    findings = verify(good, tmp_path / "renamed").findings
    assert any("another checkpoint" in finding for finding in findings)


def test_command_says_ok_or_damaged_and_exits_0_or_1(
    container: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(container), "--checkpoint", str(source)]) == 0
    assert capsys.readouterr().out.startswith("ok: ")
    change(container / "experts/layer_000.sfi", 5000)
    assert main(["verify", str(container)]) == 1
    shown = capsys.readouterr()
    assert "DAMAGED" in shown.out
    assert "layer_000.sfi" in shown.err
    assert main(["verify", str(container), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["is_good"] is False
