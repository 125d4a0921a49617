"""What the engine needs of a model family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from sparseflow.layers.weights import Progress
from sparseflow.native import _ext
from sparseflow.state.kv_cache import KVFormat
from sparseflow.state.sequence_state import SequenceState

if TYPE_CHECKING:
    from sparseflow.container.reader import Container
    from sparseflow.experts.store import ExpertStore

LogitsWanted = Literal["last", "all", "none"]
LayerProgress = Callable[[int, int], None]
"""(layers done, layers): called after each layer of a forward pass."""
IdArray = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ModelParts:
    """What a model is built from. The model keeps references; the engine owns and closes them."""

    container: Container
    runtime: _ext.Runtime
    store: ExpertStore
    kv_format: KVFormat
    progress: Progress | None = None
    lookahead: int = 0


class Model(ABC):
    """Weights and the arithmetic of one family. Holds no sequence: that is a SequenceState of its
    own.
    """

    vocab_size: int
    """Rows of the head; the tokenizer may know fewer ids."""
    max_position: int
    """Longest sequence, in tokens."""
    dense_bytes: int
    """Bytes of everything that is not a routed expert, as held in memory."""

    @abstractmethod
    def new_state(self, capacity: int) -> SequenceState:
        """An empty sequence with room for `capacity` tokens."""

    @abstractmethod
    def forward(
        self,
        ids: IdArray,
        state: SequenceState,
        logits: LogitsWanted = "last",
        on_layer: LayerProgress | None = None,
    ) -> NDArray[np.float32] | None:
        """Runs `ids` as the next tokens of `state`, all at once. REQUIRES: 0 <= id < vocab_size.

        A layer's experts are read once for all of them; everything else goes through a layer in
        tiles (layers/tiles.py), so that little more than the residual grows with their number.
        Returns logits [1, vocab_size] of the last token, [len(ids), vocab_size] of all, or None.
        How a text is cut into calls does not change a bit of them. After an exception the state
        must be reset or restored. Raises ConfigError if the ids do not fit into the state,
        StorageError if an expert cannot be read.
        """
