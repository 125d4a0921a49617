"""Stands in for benchmarks/peers/llama_cpp.py: the same options and report, ids that count up from the prompt's last.

Repacking doubles its speed, and `dio` fails, so that a search has something to find.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["run"])
    for name in (
        "build",
        "gguf",
        "prompt",
        "new",
        "threads",
        "load",
        "repack",
        "ubatch",
        "warm",
        "json",
    ):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    if options.load == "dio":
        raise SystemExit("this build has no direct I/O")
    prompt = json.loads(Path(options.prompt).read_text())
    new = int(options.new)
    step = 0.01 if options.repack == "1" else 0.02
    report = {
        "load_seconds": 0.1,
        "prompt_tokens": len(prompt),
        "prefill_seconds": len(prompt) * step / 4,
        "token_seconds": [step] * new,
        "ids": [prompt[-1] + 1 + i for i in range(new)],
        "version": "fake",
        "tunables": os.environ.get("GLIBC_TUNABLES", ""),
    }
    Path(options.json).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
