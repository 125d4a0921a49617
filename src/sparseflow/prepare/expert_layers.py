"""The stream of expert blobs of one layer: three slices of the checkpoint read, converted and laid
out, one expert at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.expert_slices import ExpertSlices
from sparseflow.container.format import SfiLayout
from sparseflow.container.matrix_formats import convert_rows
from sparseflow.container.writer import fill_projection


def expert_blobs(
    checkpoint: Checkpoint, slices: ExpertSlices, layout: SfiLayout
) -> Iterator[NDArray[np.uint8]]:
    """The blob of every expert of `layout.layer`, in order. Each is valid until the next is asked
    for.

    Raises CheckpointError for a weight that is not finite, UnsupportedError for a dtype that the
    format cannot hold.
    """
    blob = np.zeros(layout.blob_bytes, np.uint8)
    for expert in range(layout.num_experts):
        for projection, part in enumerate(slices.get(layout.layer, expert)):
            raw = np.empty(part.nbytes, np.uint8)
            checkpoint.read_into(part.file, part.offset, raw.data)
            where = f"{part.file}: tensor {part.tensor!r} (expert {layout.layer}:{expert}, {part.projection})"
            codes, scales = convert_rows(raw, part.dtype, part.shape, layout.weight_format, where)
            fill_projection(blob, layout, projection, codes, scales)
        yield blob
