"""Takes memory as fast as it can and holds it until its standard input ends: `python take_memory.py BYTES`.

Prints a line when it has all of it. Standard library only, so that little else is charged to its control group.
"""

from __future__ import annotations

import sys

CHUNK = 4 << 20


def main(size: int) -> None:
    held = bytearray(size)  # zero pages that do not exist yet
    ones = bytes([1]) * CHUNK
    for start in range(0, size, CHUNK):
        end = min(size, start + CHUNK)
        held[start:end] = ones[: end - start]
    print("held", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
