"""The .sfi header is what docs/sfi_format.md says, read here by a few lines of struct."""

from __future__ import annotations

import struct

import pytest

from sparseflow.container.format import SECTION_NAMES, SfiLayout
from sparseflow.native import _ext

CODE_AND_GROUP = {
    "bf16-v1": (1, 0),
    "int8-v1": (2, 0),
    "int4-g64-v1": (3, 64),
    "int4-g32-v1": (7, 32),
    "int8-g64-v1": (5, 64),
    "int6-g64-v1": (6, 64),
}
LAYOUTS = [
    SfiLayout(3, 20, 72, 40, "int8-v1"),
    SfiLayout(0, 20, 72, 40, "bf16-v1"),
    SfiLayout(39, 256, 2048, 512, "int8-v1"),
    SfiLayout(7, 600, 64, 16, "bf16-v1"),
    SfiLayout(1, 20, 72, 40, "int8-g64-v1"),
    SfiLayout(2, 20, 72, 40, "int6-g64-v1"),
    SfiLayout(4, 256, 2048, 512, "int4-g64-v1"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sections_are_aligned_ascending_and_inside_the_payload(layout: SfiLayout) -> None:
    end = 0
    for offset, nbytes in layout.sections:
        assert offset % 64 == 0
        assert offset >= end
        end = offset + nbytes
    assert end <= layout.payload_bytes <= layout.blob_bytes
    assert layout.blob_bytes % 4096 == layout.header_bytes % 4096 == 0
    assert layout.blob_bytes - layout.payload_bytes < 4096


def test_sizes_at_the_published_geometry() -> None:
    layout = LAYOUTS[2]
    sizes = dict(zip(SECTION_NAMES, (nbytes for _, nbytes in layout.sections), strict=True))
    assert sizes == {
        "gate codes": 1 << 20,
        "gate scales": 2048,
        "up codes": 1 << 20,
        "up scales": 2048,
        "down codes": 1 << 20,
        "down scales": 8192,
    }
    assert layout.file_bytes == layout.header_bytes + 256 * layout.blob_bytes


def test_an_int4_expert_of_the_published_geometry_has_one_and_a_half_mebibytes_and_scales() -> None:
    layout = LAYOUTS[-1]
    sizes = dict(zip(SECTION_NAMES, (nbytes for _, nbytes in layout.sections), strict=True))
    assert sizes["gate codes"] == sizes["down codes"] == 1 << 19
    assert sizes["gate scales"] == sizes["down scales"] == 32768
    assert layout.payload_bytes == layout.blob_bytes == 1671168


@pytest.mark.parametrize("layout", LAYOUTS)
def test_header_has_every_field_at_its_place(layout: SfiLayout) -> None:
    hashes = [expert * 0x0123456789ABCDEF % (1 << 64) for expert in range(layout.num_experts)]
    header = layout.build_header(hashes)
    assert len(header) == layout.header_bytes
    assert header[:8] == b"SFIEXP\r\n"
    assert struct.unpack_from("<8I", header, 8) == (
        1,
        layout.header_bytes,
        layout.layer,
        layout.num_experts,
        layout.hidden_size,
        layout.moe_intermediate_size,
        *CODE_AND_GROUP[layout.weight_format],
    )
    assert struct.unpack_from("<3Q", header, 40) == (
        layout.blob_bytes,
        layout.payload_bytes,
        layout.file_bytes,
    )
    sections = struct.unpack_from("<12Q", header, 64)
    assert tuple(zip(sections[::2], sections[1::2], strict=True)) == layout.sections
    (stored,) = struct.unpack_from("<Q", header, 160)
    assert stored == _ext.xxh3_64(header[:160] + bytes(8) + header[168:])
    assert not any(header[168:256])
    assert list(struct.unpack_from(f"<{layout.num_experts}Q", header, 256)) == hashes
    assert not any(header[256 + 8 * layout.num_experts :])
