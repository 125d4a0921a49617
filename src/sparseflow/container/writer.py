"""Writes a layer's .sfi file from a stream of blobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from sparseflow.container.format import SfiLayout
from sparseflow.native import _ext

Write = Callable[[memoryview, int], None]
"""Writes bytes at an offset of the file."""


def write_layer(write: Write, layout: SfiLayout, blobs: Iterable[NDArray[np.uint8]]) -> None:
    """Writes the blobs in order, then the header: until the header is there, the file is not an
    .sfi file.
    """
    hashes = []
    for expert, blob in enumerate(blobs):
        hashes.append(_ext.xxh3_64(blob))
        write(blob.data, layout.blob_offset(expert))
    write(memoryview(layout.build_header(hashes)), 0)
