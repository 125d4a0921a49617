"""The stream of expert blobs of one layer: slices of the checkpoint, read, converted, laid out, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.expert_slices import ExpertSlices
from sparseflow.container.format import SfiLayout
from sparseflow.prepare.pipeline import map_in_order
from sparseflow.prepare.rows import Matrix, Rows, split_rows


def expert_blobs(
    checkpoint: Checkpoint, slices: ExpertSlices, layout: SfiLayout
) -> Iterator[NDArray[np.uint8]]:
    """The blob of every expert of `layout.layer`, in order; rows are read and converted by several threads. A blob
    is valid until the next is asked for.

    Raises CheckpointError for a weight that is not finite or beyond the format, UnsupportedError for a dtype that the
    format cannot hold.
    """
    blob = np.zeros(layout.blob_bytes, np.uint8)
    last = layout.num_experts - 1
    now = 0
    work = _all_rows(slices, layout)
    converted = map_in_order(lambda item: (*item, item[2].convert(checkpoint)), work)
    for expert, projection, rows, parts in converted:
        if expert != now:
            yield blob
            now = expert
        for (offset, nbytes), begin, data in zip(
            layout.sections[2 * projection :], rows.offsets, parts, strict=False
        ):
            assert begin + data.nbytes <= nbytes
            blob[offset + begin : offset + begin + data.nbytes] = data
    assert now == last
    yield blob


def _all_rows(slices: ExpertSlices, layout: SfiLayout) -> Iterator[tuple[int, int, Rows]]:
    """(expert, projection, rows) in the order of the blobs."""
    for expert in range(layout.num_experts):
        for projection, part in enumerate(slices.get(layout.layer, expert)):
            where = (
                f"{part.file}: tensor {part.tensor!r}"
                f" (expert {layout.layer}:{expert}, {part.projection})"
            )
            matrix = Matrix(
                part.file,
                part.offset,
                part.dtype,
                part.shape,
                part.nbytes // part.shape[0],
                layout.weight_format,
                where,
            )
            for rows in split_rows(matrix):
                yield expert, projection, rows
