"""`doctor`: gathers the facts of this machine, and of a container on it, and has them judged.

Nothing is written. What cannot be found out is a line of its own, never an error.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sparseflow.checkpoint.checkpoint import storage_errors
from sparseflow.config import EngineConfig
from sparseflow.container.expert_file import open_expert_file
from sparseflow.container.reader import Container
from sparseflow.errors import BudgetError, SparseFlowError
from sparseflow.host.cpu import cpu_facts
from sparseflow.host.disk import disk_facts, reads_direct
from sparseflow.host.limits import process_limits
from sparseflow.host.memory import memory_facts
from sparseflow.host.mounts import ROOT
from sparseflow.host.pages import page_facts
from sparseflow.host.wsl import wsl_version
from sparseflow.native import _ext
from sparseflow.planning import container_checks as container_judge
from sparseflow.planning import machine_checks as machine_judge
from sparseflow.planning.budget import floor_budget, settle_shape
from sparseflow.planning.check import Check, conclude
from sparseflow.planning.container_checks import Fit, ReadTrial
from sparseflow.planning.model_shape import container_shape
from sparseflow.planning.self_test import SelfTest, self_test
from sparseflow.planning.speeds import expert_read_speed

PACKAGES = ("sparseflow", "numpy", "tokenizers", "safetensors", "jinja2")
PROBE_BYTES = 32 << 20
READ_SECONDS = 1.0
MOST_READ_BYTES = 1 << 30
HASHED_BYTES = 64 << 20
"""Files up to this size are hashed whole by the quick look; config and tokenizer are far below."""


def examine_machine(config: EngineConfig, root: Path = ROOT) -> list[Check]:
    """Software, CPU, memory and kernels, as far as they do not depend on a model. `root` stands for /."""
    memory, limits = memory_facts(root), process_limits(root)
    checks = [
        machine_judge.check_software(platform.python_version(), _versions()),
        machine_judge.check_isa(_ext.isa_names(), config.isa),
        check_self_test(self_test()),
        machine_judge.check_cpu(cpu_facts(root), config.threads),
        machine_judge.check_memory(memory, limits),
        machine_judge.check_swap(memory),
        machine_judge.check_limits(limits, memory),
        machine_judge.check_huge_pages(page_facts(root)),
        machine_judge.check_wsl(wsl_version(root), memory),
    ]
    return [check for check in checks if check is not None]


def examine_storage(directory: Path) -> list[Check]:
    """The disk that a directory lies on, or will: its nearest ancestor that exists is looked at."""
    existing = next(place for place in (directory, *directory.absolute().parents) if place.exists())
    disk = disk_facts(existing)
    return [container_judge.check_disk(disk), container_judge.check_room(disk)]


def examine_container(container: Path, config: EngineConfig) -> list[Check]:
    """The container's files, quickly; the disk below them and its speed; and whether the model fits into memory.

    One or two seconds; reads up to 1 GiB.
    """
    disk = disk_facts(container)
    checks = [examine_integrity(container), container_judge.check_disk(disk)]
    if checks[0].verdict == "fail":
        return checks
    for probe in (
        lambda: _examine_reads(container, config),
        lambda: [_examine_fit(container, config)],
    ):
        checks += _guarded(probe)
    return [*checks, container_judge.check_room(disk, 0)]


def examine_integrity(container: Path) -> Check:
    """Manifest, headers, sizes, hashes of small files, and three experts: first, middle and last."""
    remedy = "prepare the model again; sparseflow verify names every damaged byte range"
    try:
        findings, num_experts = _look_into(container)
    except SparseFlowError as error:
        return container_judge.check_integrity([str(error)], "", remedy)
    looked_at = f"{container}: sizes and headers agree, {num_experts} experts and the small files have their hashes"
    return container_judge.check_integrity(findings, looked_at, remedy)


def check_self_test(result: SelfTest) -> Check:
    """Whether the kernels of all instruction sets of this CPU agree."""
    found = f"{result.num_cases} operations, the same bytes with {', '.join(result.isas)}"
    if not result.findings:
        return conclude("self-test", found)
    remedy = (
        "this build or this machine computes wrongly: install again, test the memory, and report it"
    )
    named = "; ".join(result.findings[: container_judge.MAX_NAMED])
    return conclude("self-test", "", ("fail", named, remedy))


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _guarded(probe: Callable[[], list[Check]]) -> list[Check]:
    """What a probe finds; if it ends in an error, that is what was found."""
    try:
        return probe()
    except SparseFlowError as error:
        return [conclude("container", "", ("fail", str(error), ""))]


def _look_into(container: Path) -> tuple[list[str], int]:
    """(what is damaged, number of experts looked at)"""
    findings: list[str] = []
    with Container.open(container) as opened:
        experts, files = opened.manifest.experts, opened.expert_files
        records = opened.manifest.files
        headers = [open_expert_file(path, layer, experts) for layer, path in enumerate(files)]
    last = (len(headers) - 1, experts.num_experts - 1)
    for layer, expert in {(0, 0), (last[0] // 2, last[1] // 2), last}:
        headers[layer].check_expert(expert)
    expert_names = {path.relative_to(container).as_posix() for path in files}
    small = [n for n, r in records.items() if r.nbytes <= HASHED_BYTES and n not in expert_names]
    for name in small:
        path = container / name
        with storage_errors(path, 0, "read"), path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != records[name].sha256:
                findings.append(f"{path}: its SHA-256 is not the manifest's")
    return findings, min(3, len(headers) * experts.num_experts)


def _examine_reads(container: Path, config: EngineConfig) -> list[Check]:
    with Container.open(container) as opened:
        first, layouts = opened.expert_files[0], opened.layouts
    is_direct = reads_direct(first)
    depth = config.queue_depth
    speed, blob = expert_read_speed(container, depth, config.io, PROBE_BYTES)
    every = blob * sum(layout.num_experts for layout in layouts)
    nbytes = min(int(speed * READ_SECONDS), MOST_READ_BYTES)
    if nbytes > PROBE_BYTES and every > PROBE_BYTES:
        speed, _ = expert_read_speed(container, depth, config.io, nbytes)
    trial = ReadTrial(speed, blob, min(every, max(nbytes, PROBE_BYTES)), is_direct)
    direct = container_judge.check_direct_reads(is_direct)
    return [direct, container_judge.check_read_speed(trial, disk_facts(container))]


def _examine_fit(container: Path, config: EngineConfig) -> Check:
    shape, memory = container_shape(container), memory_facts()
    try:
        settled, budget = settle_shape(shape, config, memory)
    except BudgetError as refusal:
        return container_judge.check_fit(refusal, memory)
    fit = Fit(
        budget=budget,
        store=settled.store,
        floor_bytes=floor_budget(shape, config).total_bytes,
        experts_bytes=shape.experts_bytes,
        token_bytes=shape.blob_bytes * shape.num_layers * shape.experts_per_token,
    )
    return container_judge.check_fit(fit, memory)
