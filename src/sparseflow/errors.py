"""The six kinds of error that SparseFlow raises, and the exit code of each.

A message says what is wrong, where, and what to do about it. `assert` is for our own mistakes, never for input.
"""

from __future__ import annotations


class SparseFlowError(Exception):
    """Base of every error that a user can cause or meet."""

    exit_code = 1


class ConfigError(SparseFlowError):
    """The caller is wrong: an unknown option, a value out of range, a prompt longer than the context."""

    exit_code = 10


class CheckpointError(SparseFlowError):
    """The publisher's bytes are wrong: a cut header, a tensor out of bounds, a missing shard."""

    exit_code = 11


class ContainerError(SparseFlowError):
    """Our bytes are wrong: a container that is damaged, incomplete or of another format version."""

    exit_code = 12


class UnsupportedError(SparseFlowError):
    """Well-formed input that this version does not do: a model family, a quantization, an instruction set."""

    exit_code = 13


class StorageError(SparseFlowError):
    """A read or a write failed; carries the path, the byte offset and the errno where they are known."""

    exit_code = 14

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        errno: int | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.errno = errno


class BudgetError(SparseFlowError):
    """The request does not fit into memory or disk; carries the bytes needed and available."""

    exit_code = 15

    def __init__(
        self, message: str, *, needed_bytes: int | None = None, available_bytes: int | None = None
    ) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
