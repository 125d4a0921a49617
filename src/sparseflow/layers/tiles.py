"""How a layer walks through many tokens: one pass over its experts, but not one block of working memory."""

from __future__ import annotations

from collections.abc import Iterator

TILE_TOKENS = 256
"""Dense weights are read once a tile; at 256 tokens that costs a twentieth of the tile's arithmetic."""


def tiles(num_tokens: int) -> Iterator[slice]:
    """Consecutive slices of at most TILE_TOKENS tokens."""
    for start in range(0, num_tokens, TILE_TOKENS):
        yield slice(start, min(start + TILE_TOKENS, num_tokens))
