"""What `bench` checks instead of measuring: greedy ids against a chain, and closeness to a reference container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparseflow.bench.agreement import compare_with_reference
from sparseflow.bench.cell import Cell, run_cell
from sparseflow.bench.chain import Difference, compare, prompt_ids, read_chain
from sparseflow.bench.pairs import Note
from sparseflow.bench.peer import Peer, Setting
from sparseflow.cli.bench_modes import Shown, make_peer
from sparseflow.config import EngineConfig
from sparseflow.errors import ConfigError
from sparseflow.host.cpu import default_threads

REFERENCE_TOKENS = 128
"""Compared beyond the prompt if no chain length says how many."""


class Checks:
    """Greedy ids against the chain, of this engine and the peer; closeness to a reference container."""

    def __init__(
        self,
        container: Path,
        prompt: int,
        chain_length: int | None,
        reference: Path | None,
        config: Mapping[str, Any],
        note: Note,
    ) -> None:
        if chain_length is not None and chain_length < 1:
            raise ConfigError(f"--check-chain {chain_length}: must be at least 1")
        self._container = container
        self._prompt = prompt
        self._length = chain_length
        self._reference = reference
        self._config = config
        self._note = note
        self._peer: Peer | None = None

    def set_peer(self, build: Path | None, model: Path | None, driver: Path | None) -> None:
        self._peer = make_peer(build, model, driver)

    def run(self) -> Shown:
        document: dict[str, Any] = {}
        lines: list[str] = []
        exit_code = 0
        if self._length is not None:
            differences = self._check_chain(document, lines, self._length)
            exit_code = 1 if differences else 0
        if self._reference is not None:
            self._check_reference(document, lines, self._reference)
        return Shown(document, lines=lines, exit_code=exit_code)

    def _check_chain(
        self, document: dict[str, Any], lines: list[str], length: int
    ) -> list[Difference]:
        chain = read_chain(self._container)
        found = {"sparseflow": self._our_ids(chain, length)}
        if self._peer is not None:
            setting = Setting(self._config.get("threads") or default_threads())
            self._note("peer", 0, 1)
            found["llama.cpp"] = self._peer.run(chain[: self._prompt], length, setting)["ids"]
        differences = []
        for who, ids in found.items():
            difference = compare(who, chain, self._prompt, ids, length)
            differences += [difference] if difference else []
            same = f"ok: {who}: {length} ids after a prompt of {self._prompt} are the chain's"
            lines.append(f"DIFFERENT: {difference}" if difference else same)
        document["chain"] = {
            "prompt": self._prompt,
            "expected": chain[self._prompt : self._prompt + length],
            "found": found,
            "differences": [str(each) for each in differences],
        }
        return differences

    def _our_ids(self, chain: Sequence[int], length: int) -> list[int]:
        self._note("sparseflow", 0, 1)
        compare("", chain, self._prompt, (), length)  # refuses a chain that is too short
        cell = Cell(
            str(self._container), chain[: self._prompt], length - 1, config=dict(self._config)
        )
        ids: list[int] = run_cell(cell)["ids"]
        return ids

    def _check_reference(self, document: dict[str, Any], lines: list[str], reference: Path) -> None:
        self._note("reference", 0, 1)
        count = self._prompt + (self._length or REFERENCE_TOKENS)
        ids = prompt_ids(self._container, count)
        config = EngineConfig(**self._config)
        agreement = compare_with_reference(self._container, reference, ids, config)
        document["reference"] = {"container": str(reference), **agreement.to_dict()}
        shares = " ".join(f"{share:.4f}" for share in agreement.layer_shares)
        lines += [
            f"routed ids equal to the reference's, by layer: {shares}",
            f"worst layer {agreement.worst_share:.4f}, mean KL {agreement.mean_kl:.3e}, "
            f"same likeliest token {agreement.same_argmax:.4f}, {agreement.num_tokens} tokens",
        ]
