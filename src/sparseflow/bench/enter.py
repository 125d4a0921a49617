"""Enters a control group, then becomes another program: `python enter.py CGROUP_PROCS PROGRAM ARGUMENT...`.

A program of its own, so that nothing of the new program is charged to the old group. Standard library only.
"""

from __future__ import annotations

import os
import sys


def main(procs: str, command: list[str]) -> None:
    with open(procs, "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib would double what is loaded
        file.write(str(os.getpid()))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
