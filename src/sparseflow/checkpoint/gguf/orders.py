"""Where rows and columns that llama.cpp's converter moved have to go back to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparseflow.checkpoint.gguf.header import StoredTensor
from sparseflow.checkpoint.gguf.names import Undo
from sparseflow.errors import CheckpointError

Order = NDArray[np.intp]
_VALUE_HEADS = (Undo.VALUE_ROWS, Undo.VALUE_COLUMNS, Undo.DECAY_COLUMNS)


def undo_orders(
    undo: Undo, stored: StoredTensor, rows: int, cols: int, config: dict[str, Any]
) -> tuple[Order | None, Order | None]:
    """Which stored row each row is and which stored column each column is; None: all are where they were.

    Raises CheckpointError if the numbers of heads do not fit.
    """
    where = f"{stored.file}: tensor {stored.name!r}"
    if undo in (Undo.QUERY_PAIRS, Undo.KEY_PAIRS):
        name = "num_attention_heads" if undo is Undo.QUERY_PAIRS else "num_key_value_heads"
        heads = config[name]
        if rows % (2 * heads):
            raise CheckpointError(f"{where}: {rows} rows are no whole pairs of {heads} heads")
        return pair_order(rows, heads), None
    if undo not in _VALUE_HEADS:
        return None, None
    keys, values = (config[f"linear_num_{kind}_heads"] for kind in ("key", "value"))
    if values % keys:
        raise CheckpointError(f"{where}: {values} value heads for {keys} key heads, no multiple")
    if values == keys:
        return None, None
    order = value_head_order(keys, values)
    if undo is Undo.VALUE_ROWS:
        width = 1 if rows == values else config["linear_value_head_dim"]
        return tail_order(rows, order, width), None
    return None, tail_order(cols, order, cols // values)


def value_head_order(num_key_heads: int, num_value_heads: int) -> NDArray[np.intp]:
    """Which value head of a GGUF file is each one of the checkpoint.

    The file has them as [value heads of a key head, key heads], a checkpoint the other way round.
    """
    stored = np.arange(num_value_heads).reshape(num_value_heads // num_key_heads, num_key_heads)
    order: NDArray[np.intp] = stored.T.reshape(-1)
    return order


def tail_order(size: int, heads: NDArray[np.intp], width: int) -> NDArray[np.intp]:
    """Which stored row each of `size` is, if the last are `width` for each head, head i being the stored `heads[i]`."""
    kept = size - heads.size * width
    moved = kept + (heads[:, None] * width + np.arange(width)).reshape(-1)
    return np.concatenate([np.arange(kept), moved])


def pair_order(size: int, num_heads: int) -> NDArray[np.intp]:
    """Which stored row each of `size` is, if the two that rotate together are stored side by side, head by head."""
    stored = np.arange(size).reshape(num_heads, size // num_heads // 2, 2)
    return stored.swapaxes(1, 2).reshape(-1)
