"""One decode for pressure.py, in a process of its own: prints a JSON line every tenth of a second and one at the end.

After the last token it waits for the end of its standard input, then for the arena to grow back.

python pressure_run.py CONTAINER CACHE_BYTES NEW_TOKENS
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from pathlib import Path

from sparseflow.bench.chain import prompt_ids
from sparseflow.config import EngineConfig, SamplingParams
from sparseflow.engine.engine import Engine
from sparseflow.experts.streaming import StreamingStore
from sparseflow.host.process import process_memory

PROMPT_TOKENS = 16
INTERVAL = 0.1
PATIENCE = 20.0
"""Seconds in which the arena may still grow."""


class Reporter:
    """Prints what the arena and the process hold, until closed."""

    def __init__(self, store: StreamingStore) -> None:
        self.tokens = 0
        self.is_decoding = True
        self._store = store
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            arena = self._store.arena
            line = {
                "seconds": time.monotonic(),
                "tokens": self.tokens,
                "is_decoding": self.is_decoding,
                "full": arena.full,
                "allowed": arena.allowed,
                "held": arena.held,
                "touched": arena.touched,
                "own": process_memory().anonymous_bytes,
            }
            print(json.dumps(line), flush=True)


def main(container: Path, cache_bytes: int, new_tokens: int) -> None:
    config = EngineConfig(
        store="streaming", cache_bytes=cache_bytes, ctx=PROMPT_TOKENS + new_tokens + 1
    )
    digest = hashlib.sha256()
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    with Engine.open(container, config) as engine:
        assert isinstance(engine.store, StreamingStore)
        reporter = Reporter(engine.store)
        prompt = prompt_ids(container, PROMPT_TOKENS)
        for token in engine.generate(prompt, params, hash_logits=True):
            digest.update((token.logits_sha256 or "").encode())
            reporter.tokens += 1
        reporter.is_decoding = False  # perhaps earlier than wanted: the context may be shorter
        sys.stdin.read()
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and engine.store.arena.allowed < engine.store.arena.full:
            time.sleep(INTERVAL)
        time.sleep(2 * INTERVAL)  # one more line
        reporter.close()
        stats = engine.stats()
    last = {"hash": digest.hexdigest(), "tokens": reporter.tokens, "leases": stats.active_leases}
    last |= {"shrinks": stats.experts.shrinks, "grows": stats.experts.grows}
    last |= {"least": stats.experts.least_bytes, "misses": stats.experts.misses}
    last |= {"decode_seconds": stats.decode_seconds, "warnings": list(stats.warnings)}
    print(json.dumps(last), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
