"""The types of GGUF tensors: how many values a block holds, in how many bytes, and which types are read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockType:
    """One type: consecutive values of a row share a block."""

    number: int
    """As files name it."""
    name: str
    block_values: int
    block_bytes: int

    @property
    def is_quantized(self) -> bool:
        """Whether values have to be computed from a block's codes and scales."""
        return self.block_values > 1


FLOAT_TYPES = (
    BlockType(0, "F32", 1, 4),
    BlockType(1, "F16", 1, 2),
    BlockType(30, "BF16", 1, 2),
)
QUANTIZED_TYPES = (
    BlockType(2, "Q4_0", 32, 18),
    BlockType(3, "Q4_1", 32, 20),
    BlockType(6, "Q5_0", 32, 22),
    BlockType(7, "Q5_1", 32, 24),
    BlockType(8, "Q8_0", 32, 34),
    BlockType(10, "Q2_K", 256, 84),
    BlockType(11, "Q3_K", 256, 110),
    BlockType(12, "Q4_K", 256, 144),
    BlockType(13, "Q5_K", 256, 176),
    BlockType(14, "Q6_K", 256, 210),
    BlockType(20, "IQ4_NL", 32, 18),
    BlockType(23, "IQ4_XS", 256, 136),
)
READ_TYPES = {kind.number: kind for kind in (*FLOAT_TYPES, *QUANTIZED_TYPES)}
"""Sizes are those of the gguf package's GGML_QUANT_SIZES; a test compares them."""

OTHER_NAMES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""Types that are known and not read, so that they can be refused by name."""
