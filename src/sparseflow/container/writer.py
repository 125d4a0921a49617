"""Writes a layer's .sfi file: from a stream of blobs, or the header once the blobs are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from sparseflow.container.format import SfiLayout
from sparseflow.native import _ext

Write = Callable[[memoryview, int], None]
"""Writes bytes at an offset of the file."""
Read = Callable[[memoryview, int], int]
"""Fills a buffer with the bytes at an offset of the file; returns how many there were."""


def write_layer(write: Write, layout: SfiLayout, blobs: Iterable[NDArray[np.uint8]]) -> None:
    """Writes the blobs in order, then the header: until the header is there, the file is not an
    .sfi file.
    """
    hashes = []
    for expert, blob in enumerate(blobs):
        hashes.append(_ext.xxh3_64(blob))
        write(blob.data, layout.blob_offset(expert))
    write(memoryview(layout.build_header(hashes)), 0)


def seal_layer(read: Read, write: Write, layout: SfiLayout) -> None:
    """Writes the header of a file whose blobs have been written in pieces."""
    hashes = []
    blob = np.empty(layout.blob_bytes, np.uint8)
    for expert in range(layout.num_experts):
        count = read(blob.data, layout.blob_offset(expert))
        assert count == layout.blob_bytes
        hashes.append(_ext.xxh3_64(blob))
    write(memoryview(layout.build_header(hashes)), 0)
