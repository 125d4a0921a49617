"""Memory that a forward pass works in, the same sum for every family; an estimate on the safe side."""

from __future__ import annotations

from dataclasses import dataclass

from sparseflow.layers.tiles import TILE_TOKENS

BATCH_BYTES = 16 << 20
BATCH_ROWS = (128, 512)
"""How many rows one expert batch of the native core has: what fits into BATCH_BYTES, within these bounds."""


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """What the sum depends on."""

    hidden_size: int
    mixer_size: int
    """Floats of one token between the mixer's input and its output."""
    expert_size: int
    """The larger intermediate size of routed and shared experts."""
    num_experts: int
    num_experts_per_tok: int
    vocab_size: int


def workspace_bytes(sizes: LayerSizes, chunk: int) -> int:
    """Of prefill chunks of `chunk` tokens: with them grow the residual, the experts' input and output, a quantized copy
    and the choices of experts; a tile's norm, mixer and router, a batch of expert rows and the logits of a step do not.
    """
    hidden = sizes.hidden_size
    token = 14 * hidden + 32 * (sizes.num_experts_per_tok + 1)
    tile = 4 * (3 * hidden + sizes.mixer_size + sizes.num_experts)
    row = 6 * sizes.expert_size + 10 * hidden
    fewest, most = BATCH_ROWS
    rows = min(max(BATCH_BYTES // row, fewest), most)
    batch = rows * (row + 4 * hidden)
    return chunk * token + min(chunk, TILE_TOKENS) * tile + batch + 8 * sizes.vocab_size
