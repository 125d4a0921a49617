"""Walks the head of a GGUF file value by value; no step leaves the file or the size that a head may have."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sparseflow.errors import CheckpointError, UnsupportedError

MAX_HEADER_BYTES = 64 << 20
MAX_STRING_BYTES = 1 << 20
MAX_KEPT = 1 << 12
"""Arrays of at most so many numbers are read at once; others are placed."""

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Value types of the format -> struct's letters; all little-endian."""
STRING, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class ArrayPlace:
    """An array that was walked and not kept."""

    kind: int
    """Value type of its elements."""
    count: int
    offset: int
    """Of the first element, from the beginning of the file."""


class Cursor:
    """A position in `file` that only goes forward. Every method raises CheckpointError if what it is asked for is not
    whole or not what it should be, naming the key or tensor `what`.
    """

    def __init__(self, file: BinaryIO, path: Path, file_bytes: int, position: int = 0) -> None:
        self._file = file
        self._path = path
        self._end = min(file_bytes, MAX_HEADER_BYTES)
        self.position = position

    def take(self, nbytes: int, what: str) -> bytes:
        """The next bytes."""
        self._check(nbytes, what)
        raw = self._file.read(nbytes)
        if len(raw) != nbytes:
            raise CheckpointError(f"{self._path}: the file ends inside its header ({what})")
        self.position += nbytes
        return raw

    def number(self, letter: str, what: str) -> Any:
        """The next number, of a type that struct knows by `letter`."""
        return struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter), what))[0]

    def string(self, what: str, most: int = MAX_STRING_BYTES) -> str:
        """The next string, at most `most` bytes of UTF-8."""
        raw = self.take(self._length(what, most), what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise CheckpointError(f"{self._path}: {what} is not UTF-8") from None

    def value(self, kind: int, what: str) -> Any:
        """The next value of that type: a number, a string, a list of numbers, or the place of an array."""
        if kind in SCALARS:
            return self.number(SCALARS[kind], what)
        if kind == STRING:
            return self.string(what)
        if kind != ARRAY:
            raise CheckpointError(f"{self._path}: {what} is of unknown value type {kind}")
        element, count = self.number("I", what), self.number("Q", what)
        if element == ARRAY:
            raise UnsupportedError(f"{self._path}: {what} is an array of arrays, which is not read")
        if element in SCALARS and count <= MAX_KEPT:
            return self.values(element, count, what)
        place = ArrayPlace(element, count, self.position)
        self._skip(element, count, what)
        return place

    def values(self, kind: int, count: int, what: str) -> list[Any]:
        """The next `count` values of that type."""
        if kind == STRING:
            self._check(8 * count, what)
            return [self.string(what) for _ in range(count)]
        letter = SCALARS[kind]
        raw = self.take(count * struct.calcsize("<" + letter), what)
        return list(struct.unpack(f"<{count}{letter}", raw))

    def _skip(self, kind: int, count: int, what: str) -> None:
        if kind in SCALARS:
            nbytes = count * struct.calcsize("<" + SCALARS[kind])
            self._check(nbytes, what)
            self._file.seek(nbytes, 1)
            self.position += nbytes
            return
        if kind != STRING:
            raise CheckpointError(f"{self._path}: {what} holds values of unknown type {kind}")
        self._check(8 * count, what)
        for _ in range(count):
            self.take(self._length(what, MAX_STRING_BYTES), what)

    def _length(self, what: str, most: int) -> int:
        length: int = self.number("Q", what)
        if length > most:
            raise CheckpointError(
                f"{self._path}: {what} has a string of {length} bytes; at most {most} are read"
            )
        return length

    def _check(self, nbytes: int, what: str) -> None:
        if self.position + nbytes > self._end:
            raise CheckpointError(
                f"{self._path}: {what} takes {nbytes} bytes from byte {self.position} on, beyond"
                f" the file or the {MAX_HEADER_BYTES} bytes that a header may have; the file is cut"
                " or its header is wrong"
            )
