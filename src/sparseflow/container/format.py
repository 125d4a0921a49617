"""The .sfi file, version 1: one layer's routed experts, one aligned blob each. docs/sfi_format.md
is the specification.

Constants here are permanent. Native code (sfi_file.h) reads what this module lays out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from sparseflow.container.manifest import ExpertsRecord
from sparseflow.container.matrix_sizes import code_bytes, round_up, scale_bytes, scale_group
from sparseflow.container.recipes import BF16, INT4_G32, INT4_G64, INT6_G64, INT8, INT8_G64

MAGIC = b"SFIEXP\r\n"
VERSION = 1
PAGE = 4096
SECTION_ALIGNMENT = 64
INDEX_OFFSET = 256
HASH_OFFSET = 160
FORMAT_CODES = {BF16: 1, INT8: 2, INT4_G64: 3, INT8_G64: 5, INT6_G64: 6, INT4_G32: 7}
SECTION_NAMES = ("gate codes", "gate scales", "up codes", "up scales", "down codes", "down scales")


@dataclass(frozen=True)
class SfiLayout:
    """Where everything lies in the .sfi file of one layer."""

    layer: int
    num_experts: int
    hidden_size: int
    moe_intermediate_size: int
    weight_format: str

    @classmethod
    def of(cls, experts: ExpertsRecord, layer: int = 0) -> Self:
        """Of a container, as its manifest says."""
        sizes = experts.num_experts, experts.hidden_size, experts.moe_intermediate_size
        return cls(layer, *sizes, experts.weight_format)

    @classmethod
    def planned(cls, config: Mapping[str, Any], weight_format: str, layer: int = 0) -> Self:
        """Of a container that is still to be made. config: of the text model, checked."""
        sizes = config["num_experts"], config["hidden_size"], config["moe_intermediate_size"]
        return cls(layer, *sizes, weight_format)

    @cached_property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """[rows, cols] of gate, up and down."""
        inner, hidden = self.moe_intermediate_size, self.hidden_size
        return (inner, hidden), (inner, hidden), (hidden, inner)

    @cached_property
    def sections(self) -> tuple[tuple[int, int], ...]:
        """(offset, nbytes) within a blob, in the order of SECTION_NAMES."""
        sections: list[tuple[int, int]] = []
        offset = 0
        for rows, cols in self.shapes:
            for nbytes in (
                code_bytes(self.weight_format, rows, cols),
                scale_bytes(self.weight_format, rows, cols),
            ):
                sections.append((offset, nbytes))
                offset = round_up(offset + nbytes, SECTION_ALIGNMENT)
        return tuple(sections)

    @property
    def payload_bytes(self) -> int:
        """End of the last section of a blob; the rest of the blob is zero."""
        return max(offset + nbytes for offset, nbytes in self.sections)

    @property
    def blob_bytes(self) -> int:
        """From one expert to the next."""
        return round_up(self.payload_bytes, PAGE)

    @property
    def header_bytes(self) -> int:
        """Header, index of hashes and padding; the first blob begins here."""
        return round_up(INDEX_OFFSET + 8 * self.num_experts, PAGE)

    @property
    def file_bytes(self) -> int:
        """Of the whole file."""
        return self.header_bytes + self.num_experts * self.blob_bytes

    def blob_offset(self, expert: int) -> int:
        """Where the blob of an expert begins in the file."""
        return self.header_bytes + expert * self.blob_bytes

    def build_header(self, blob_hashes: list[int]) -> bytes:
        """The first `header_bytes` of the file, given the XXH3-64 of every blob."""
        # Here, so that a plan, which needs sizes alone, does not load the native core.
        from sparseflow.native import _ext

        header = bytearray(self.header_bytes)
        header[:8] = MAGIC
        struct.pack_into(
            "<8I3Q",
            header,
            8,
            VERSION,
            self.header_bytes,
            self.layer,
            self.num_experts,
            self.hidden_size,
            self.moe_intermediate_size,
            FORMAT_CODES[self.weight_format],
            scale_group(self.weight_format),
            self.blob_bytes,
            self.payload_bytes,
            self.file_bytes,
        )
        struct.pack_into(
            "<12Q", header, 64, *(value for section in self.sections for value in section)
        )
        struct.pack_into(f"<{self.num_experts}Q", header, INDEX_OFFSET, *blob_hashes)
        struct.pack_into("<Q", header, HASH_OFFSET, _ext.xxh3_64(bytes(header)))
        return bytes(header)
