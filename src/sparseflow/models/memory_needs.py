"""What a family's models need beside weights and experts: memory, and arithmetic in float32."""

from __future__ import annotations

from typing import Protocol


class MemoryNeeds(Protocol):
    """What a family's configuration says of memory beside weights and experts."""

    def state_bytes(self, ctx: int, kv_bytes: int) -> int:
        """Of one sequence of `ctx` tokens; kv_bytes: of one key or value. Exact."""

    def workspace_bytes(self, chunk: int) -> int:
        """For prefill chunks of that many tokens; an estimate on the safe side."""

    def float_macs(self, position: int) -> int:
        """Multiply-accumulates of one token at that position that are not with weights: attention, recurrent states."""
