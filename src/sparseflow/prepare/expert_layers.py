"""The stream of expert blobs of one layer: slices of the checkpoint read, converted, laid out, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.expert_slices import ExpertSlices
from sparseflow.container.format import SfiLayout
from sparseflow.prepare.pipeline import map_in_order
from sparseflow.prepare.rows import Matrix, RawRows, read_rows

Parts = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def expert_blobs(
    checkpoint: Checkpoint, slices: ExpertSlices, layout: SfiLayout
) -> Iterator[NDArray[np.uint8]]:
    """The blob of every expert of `layout.layer`, in order; rows are converted by several threads while the next are
    read. A blob is valid until the next is asked for.

    Raises CheckpointError for a weight that is not finite or beyond the format, UnsupportedError for a dtype that the
    format cannot hold.
    """
    blob = np.zeros(layout.blob_bytes, np.uint8)
    last = layout.num_experts - 1
    now = 0
    converted = map_in_order(_convert, _raw_rows(checkpoint, slices, layout))
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


def _raw_rows(
    checkpoint: Checkpoint, slices: ExpertSlices, layout: SfiLayout
) -> Iterator[tuple[int, int, RawRows]]:
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
            for rows in read_rows(checkpoint, matrix):
                yield expert, projection, rows


def _convert(item: tuple[int, int, RawRows]) -> tuple[int, int, RawRows, Parts]:
    expert, projection, rows = item
    return expert, projection, rows, rows.convert()
