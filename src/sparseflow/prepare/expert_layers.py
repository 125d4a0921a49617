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
    for expert, offset, data in _pieces(checkpoint, layout, _all_rows(slices, layout)):
        if expert != now:
            yield blob
            now = expert
        blob[offset : offset + data.nbytes] = data
    assert now == last
    yield blob


def expert_pieces(
    checkpoint: Checkpoint, slices: ExpertSlices, layout: SfiLayout, shard: str
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """What the shard of that file name holds of the experts of `layout.layer`: bytes, and their place in the .sfi file.
    Raises as `expert_blobs`.
    """
    work = (item for item in _all_rows(slices, layout) if item[2].matrix.file.name == shard)
    for expert, offset, data in _pieces(checkpoint, layout, work):
        yield layout.blob_offset(expert) + offset, data


def expert_shards(slices: ExpertSlices, layer: int) -> set[str]:
    """File names of the shards that the experts of a layer lie in."""
    return {
        part.file.name for expert in range(slices.num_experts) for part in slices.get(layer, expert)
    }


def _pieces(
    checkpoint: Checkpoint, layout: SfiLayout, work: Iterator[tuple[int, int, Rows]]
) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
    """(expert, place in its blob, bytes)."""
    converted = map_in_order(lambda item: (*item, item[2].convert(checkpoint)), work)
    for expert, projection, rows, parts in converted:
        for (offset, nbytes), begin, data in zip(
            layout.sections[2 * projection :], rows.offsets, parts, strict=False
        ):
            assert begin + data.nbytes <= nbytes
            yield expert, offset + begin, data


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
