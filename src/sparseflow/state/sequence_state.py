"""All that a model remembers of one sequence: a state per layer and the number of tokens in it.

A step overwrites delta states in place, so an interrupted step cannot be undone. It is noticed
instead: such a state refuses to go on until it is reset or restored from a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sparseflow.errors import ConfigError
from sparseflow.state.delta_state import DeltaSnapshot, DeltaState
from sparseflow.state.kv_cache import KVCache, KVSnapshot

LayerState = KVCache | DeltaState
LayerSnapshot = KVSnapshot | DeltaSnapshot


@dataclass(frozen=True, slots=True)
class SequenceSnapshot:
    """Everything that is needed to continue bit-identically after `position` tokens. Owns its
    bytes.
    """

    position: int
    layers: tuple[LayerSnapshot, ...]


class SequenceState:
    """One timeline; used by one thread at a time. A snapshot may be restored into any state of the
    same model that has
    room for it.
    """

    def __init__(self, layers: Sequence[LayerState], capacity: int) -> None:
        self.layers: tuple[LayerState, ...] = tuple(layers)
        self.capacity = capacity
        """Tokens that fit."""
        self._position = 0
        self._is_torn = False

    @property
    def position(self) -> int:
        """Tokens in the state; the next token has this position."""
        return self._position

    @property
    def nbytes(self) -> int:
        """Bytes at full capacity."""
        return sum(layer.nbytes for layer in self.layers)

    @contextmanager
    def step(self, num_tokens: int) -> Iterator[int]:
        """Encloses the computation of `num_tokens` more tokens; gives the position of the first.

        Raises ConfigError if they do not fit, or if an earlier step was interrupted.
        """
        if self._is_torn:
            raise ConfigError(
                "this sequence was interrupted within a step; start a new one or restore a snapshot"
            )
        if self._position + num_tokens > self.capacity:
            raise ConfigError(
                f"{self._position + num_tokens} tokens do not fit into a context of {self.capacity}"
            )
        self._is_torn = True
        yield self._position
        self._position += num_tokens
        self._is_torn = False

    def reset(self) -> None:
        """An empty sequence."""
        for layer in self.layers:
            layer.reset()
        self._position = 0
        self._is_torn = False

    def snapshot(self) -> SequenceSnapshot:
        """Copies the state. Raises ConfigError if a step was interrupted."""
        if self._is_torn:
            raise ConfigError(
                "this sequence was interrupted within a step; it has no state to copy"
            )
        return SequenceSnapshot(
            self._position, tuple(layer.snapshot(self._position) for layer in self.layers)
        )

    def restore(self, snapshot: SequenceSnapshot) -> None:
        """Goes to the snapshot's position, whatever happened since.

        Raises ConfigError if it is longer than this state's capacity.
        """
        if snapshot.position > self.capacity:
            raise ConfigError(
                f"a snapshot of {snapshot.position} tokens does not fit into a context of {self.capacity}"
            )
        self._is_torn = True
        for layer, saved in zip(self.layers, snapshot.layers, strict=True):
            _restore_layer(layer, saved)
        self._position = snapshot.position
        self._is_torn = False


def _restore_layer(layer: LayerState, saved: LayerSnapshot) -> None:
    match layer, saved:
        case KVCache(), KVSnapshot():
            layer.restore(saved)
        case DeltaState(), DeltaSnapshot():
            layer.restore(saved)
        case _:
            raise ConfigError("the snapshot belongs to another model: its layers differ in kind")
