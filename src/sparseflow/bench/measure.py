"""One row of a table: a container under one configuration, alone or beside a peer, warm or cold, limited or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sparseflow.bench.cell import Cell, run_cell
from sparseflow.bench.chain import prompt_ids
from sparseflow.bench.cold import ColdProof, container_files, drop_pages
from sparseflow.bench.limits import MemoryGroup
from sparseflow.bench.machine import describe_code, describe_container, describe_machine
from sparseflow.bench.pairs import Note, Pairs, alternate
from sparseflow.bench.peer import Peer, Setting
from sparseflow.bench.probes import ProbePlan, run_probes
from sparseflow.bench.read_ahead import read_ahead
from sparseflow.bench.summary import summarize
from sparseflow.config import EngineConfig
from sparseflow.errors import UnsupportedError
from sparseflow.host.cpu import default_threads

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a row measures."""

    container: Path
    prompt: int = 512
    """Tokens."""
    new: int = 64
    warm_up: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of EngineConfig."""
    pairs: int = 3
    limit_bytes: int | None = None
    is_cold: bool = False
    counts_routes: bool = False
    peer: Peer | None = None
    setting: Setting | None = None
    """Of the peer."""

    @property
    def threads(self) -> int:
        return int(self.config.get("threads") or default_threads())

    @property
    def peer_setting(self) -> Setting:
        return self.setting or Setting(self.threads)

    def engine_config(self) -> dict[str, Any]:
        """With the bound that a limit asks for, unless one was given."""
        config = dict(self.config)
        if self.limit_bytes is not None and config.get("ram_bytes") is None:
            config["ram_bytes"] = self.limit_bytes
        return config


def measure(plan: Plan, note: Note | None = None) -> Row:
    """Runs the pairs and sums them up. Raises what the runs raise.

    Where no control group can be made the runs are unlimited, and the row says why.
    """
    plan, limit_note = _settle_limit(plan)
    cell = Cell(
        str(plan.container),
        prompt_ids(plan.container, plan.prompt),
        plan.new,
        plan.warm_up,
        plan.engine_config(),
        plan.counts_routes,
    )
    pairs = alternate(
        lambda: _run_ours(plan, cell),
        None
        if plan.peer is None
        else lambda: run_peer(plan, plan.peer_setting, cell.prompt, cell.new, warm_up=cell.warm_up),
        _probe(plan),
        plan.pairs,
        note=note,
    )
    return {
        "cell": cell.to_dict(),
        "container": describe_container(plan.container),
        "code": describe_code(),
        "machine": describe_machine(),
        "run": _what_ran(pairs),
        "limit_bytes": plan.limit_bytes,
        "limit_note": limit_note,
        "temperature": _temperature(plan, pairs),
        "peer": _describe_peer(plan),
        "figures": summarize(pairs, plan.container),
        "measured": pairs.to_dict(),
    }


def _settle_limit(plan: Plan) -> tuple[Plan, str]:
    """The plan without its limit, and why, if no control group can be made."""
    if plan.limit_bytes is None:
        return plan, ""
    try:
        MemoryGroup(plan.limit_bytes).remove()
    except UnsupportedError as error:
        return replace(plan, limit_bytes=None), str(error)
    return plan, ""


def _probe(plan: Plan) -> Callable[[], Any]:
    config = EngineConfig(**plan.engine_config())
    probe = ProbePlan(plan.threads, config.isa, plan.container, config.queue_depth, config.io)
    return lambda: run_probes(probe)


@contextmanager
def conditions(
    plan: Plan, files: Sequence[Path], read_ahead_kib: int | None = None
) -> Iterator[tuple[MemoryGroup | None, float | None]]:
    """What a run needs around it: its files' pages dropped, read-ahead set, a fresh control group.

    Yields the group, and the share of the files that stayed cached; None for what the plan does not ask for.
    """
    cached = None
    if plan.is_cold or plan.limit_bytes is not None:
        cached = drop_pages(files)
    with ExitStack() as stack:
        if read_ahead_kib is not None:
            stack.enter_context(read_ahead(files[0], read_ahead_kib))
        group = None
        if plan.limit_bytes is not None:
            group = stack.enter_context(MemoryGroup(plan.limit_bytes))
        yield group, cached


def _run_ours(plan: Plan, cell: Cell) -> Row:
    with conditions(plan, container_files(plan.container)) as (group, cached):
        return {**run_cell(cell, group), "cached_share": cached}


def run_peer(
    plan: Plan, setting: Setting, prompt: Sequence[int], new: int, warm_up: int = 0
) -> Row:
    """One run of the plan's peer under the plan's conditions. REQUIRES: plan.peer."""
    assert plan.peer is not None
    with conditions(plan, [plan.peer.model], setting.read_ahead_kib) as (group, _):
        return plan.peer.run(prompt, new, setting, warm_up=warm_up, group=group)


def _what_ran(pairs: Pairs) -> Row:
    """What the engine settled on, which must be the same in every run."""
    names = ("isa", "threads", "store", "policy", "queue_depth", "io", "recipe", "budget", "leases")
    return {name: pairs.kept[-1].ours[name] for name in names}


def _temperature(plan: Plan, pairs: Pairs) -> Row:
    """`cold` only if every run is proven to have been; else `warm`, with the doubt if cold was asked for."""
    if not plan.is_cold:
        return {"kind": "warm", "doubt": ""}
    doubts = [cold_proof(pair.ours, pair.limits.disk_bytes).doubt for pair in pairs.kept]
    doubt = next((doubt for doubt in doubts if doubt), "")
    return {"kind": "not proven cold" if doubt else "cold", "doubt": doubt}


def cold_proof(report: Mapping[str, Any], disk_bytes: float) -> ColdProof:
    """Of a whole run: all that it loaded and read."""
    clock = report["clock"]
    return ColdProof(
        cached_share=report["cached_share"],
        needed_bytes=report["dense_bytes"] + report["experts"]["bytes_read"],
        read_bytes=report["watch"]["read_bytes"],
        seconds=clock["first_token"] - clock["imported"] + report["decode"]["wall_seconds"],
        disk_bytes=disk_bytes,
    )


def _describe_peer(plan: Plan) -> Row | None:
    if plan.peer is None:
        return None
    setting = plan.peer_setting
    return {
        "build": str(plan.peer.build),
        "model": str(plan.peer.model),
        "model_bytes": plan.peer.model.stat().st_size,
        "setting": asdict(setting),
        "label": setting.label(),
    }
