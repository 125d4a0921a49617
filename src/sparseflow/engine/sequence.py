"""One token timeline: the ids so far and what the model remembers of them."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from sparseflow.models.base import LayerProgress, LogitsWanted, Model
from sparseflow.state.sequence_state import SequenceSnapshot


class Sequence:
    """Used by one thread at a time; may outlive an error only through `restore`."""

    def __init__(self, model: Model, capacity: int) -> None:
        self._model = model
        self.state = model.new_state(capacity)
        self._ids = np.zeros(
            capacity + 1, dtype=np.int32
        )  # the last sampled id needs no place in the state
        self._num_ids = 0

    @property
    def ids(self) -> NDArray[np.int32]:
        """A view of all ids, also those that the model has not seen yet."""
        return self._ids[: self._num_ids]

    @property
    def position(self) -> int:
        """Tokens that the model has seen."""
        return self.state.position

    def append(self, ids: SequenceOf[int]) -> None:
        """Adds ids for the model to see. REQUIRES: at most capacity + 1 ids in all."""
        self._ids[self._num_ids : self._num_ids + len(ids)] = ids
        self._num_ids += len(ids)

    def forward(
        self, num_tokens: int, logits: LogitsWanted, on_layer: LayerProgress | None = None
    ) -> NDArray[np.float32] | None:
        """Shows the model the next num_tokens ids, in one call."""
        ids = self.ids[self.position : self.position + num_tokens]
        return self._model.forward(ids, self.state, logits, on_layer)

    def snapshot(self) -> tuple[NDArray[np.int32], SequenceSnapshot]:
        """The ids that the model has seen and its state after them; both copied."""
        return self.ids[: self.position].copy(), self.state.snapshot()

    def restore(self, saved: tuple[NDArray[np.int32], SequenceSnapshot]) -> None:
        """Goes back to, or on from, a snapshot of any sequence of this model that fits."""
        ids, snapshot = saved
        self.state.restore(snapshot)
        self._num_ids = 0
        self.append(ids.tolist())
