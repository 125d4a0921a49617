"""Reads the dense weights of a container into native matrices and float vectors, counting bytes
for the progress.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sparseflow.errors import ContainerError
from sparseflow.native import _ext

if TYPE_CHECKING:
    from sparseflow.container.reader import Container

Progress = Callable[[str, int, int], None]
"""(what, done, total): called from the thread that loads or generates; must not raise."""


class WeightLoader:
    """Used while a model is built. Values are as in the checkpoint; nothing is cached here."""

    def __init__(self, container: Container, progress: Progress | None) -> None:
        self.container = container
        self.loaded_bytes = 0
        self._total_bytes = _resident_bytes(container)
        self._progress = progress

    def matrix(self, name: str, shape: tuple[int, int]) -> _ext.Matrix:
        """A [rows, cols] weight in the format that the recipe gave it. Raises ContainerError if
        the shape differs.
        """
        stored = self.container.read_matrix(name)
        if (stored.rows, stored.cols) != shape:
            raise _wrong_shape(name, (stored.rows, stored.cols), shape)
        self._count(stored.codes.nbytes + (0 if stored.scales is None else stored.scales.nbytes))
        return _ext.Matrix(stored.format, stored.rows, stored.cols, stored.codes, stored.scales)

    def vector(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A float32 tensor. Raises ContainerError if the shape differs."""
        values = self.container.read_vector(name)
        if values.shape != shape:
            raise _wrong_shape(name, values.shape, shape)
        self._count(values.nbytes)
        return values

    def one_plus_vector(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """1 + w, for families whose norms multiply by that; rounded once, here."""
        return np.float32(1.0) + self.vector(name, shape)

    def _count(self, nbytes: int) -> None:
        self.loaded_bytes += nbytes
        if self._progress is not None:
            self._progress("load", min(self.loaded_bytes, self._total_bytes), self._total_bytes)


def _resident_bytes(container: Container) -> int:
    """Bytes of dense.safetensors that are loaded: all but the embedding, which is read by row."""
    rows, cols = container.manifest.tensors["embed_tokens.weight"].shape
    return container.manifest.files["dense.safetensors"].nbytes - 2 * rows * cols


def _wrong_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> ContainerError:
    return ContainerError(
        f"{name}: shape {list(found)}, config.json asks for {list(expected)}; prepare the model again"
    )
