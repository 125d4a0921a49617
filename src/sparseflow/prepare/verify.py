"""Checks a container: every file's hash, every expert's hash and scales, all padding; and against its checkpoint.

Comparing makes the container's bytes anew from the checkpoint and compares them piece by piece, so it also holds for
recipes that round.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sparseflow.checkpoint.checkpoint import pread_full, storage_errors
from sparseflow.checkpoint.open import open_checkpoint
from sparseflow.container.dense_layout import DENSE_NAME
from sparseflow.container.expert_file import open_expert_file
from sparseflow.container.format import SECTION_NAMES, SfiLayout
from sparseflow.container.manifest import FileRecord, TensorRecord
from sparseflow.container.matrix_formats import view_scales
from sparseflow.container.matrix_sizes import (
    INTEGER_BITS,
    ROW_BLOCK,
    code_bytes,
    round_up,
    scale_bytes,
)
from sparseflow.container.reader import Container
from sparseflow.container.recipes import FLOAT32, get_recipe
from sparseflow.errors import ContainerError
from sparseflow.native import _ext
from sparseflow.prepare.plan import ContainerPlan, plan_container

BLOCK_BYTES = 4 << 20
Progress = Callable[[str, int, int], None]


@dataclass
class VerifyReport:
    """What was checked, and every difference found: one line each."""

    num_files: int = 0
    num_bytes: int = 0
    num_experts: int = 0
    num_compared: int = 0
    """Files compared with the checkpoint."""
    findings: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Nothing differs."""
        return not self.findings


def verify(
    path: Path,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
    tokenizer: Path | None = None,
) -> VerifyReport:
    """Checks the container in `path`, and compares it with `checkpoint` if one is given, a directory or a GGUF file;
    `tokenizer` as `prepare` was given it.

    Differences are in the report. Raises ContainerError if the directory is no container that can be read, and what
    opening the checkpoint raises.
    """
    report = VerifyReport()
    with Container.open(path) as container:
        total = sum(record.nbytes for record in container.manifest.files.values())
        for name, record in container.manifest.files.items():
            _check_hash(report, path / name, record)
            report.num_files += 1
            report.num_bytes += record.nbytes
            if progress is not None:
                progress("verify", report.num_bytes, total)
        for layer, expert_file in enumerate(container.expert_files):
            _check_experts(report, expert_file, layer, container)
        _check_dense(report, container)
    if checkpoint is not None:
        _compare(report, path, checkpoint, progress, tokenizer)
    return report


def _check_hash(report: VerifyReport, path: Path, record: FileRecord) -> None:
    digest = hashlib.sha256()
    with storage_errors(path, 0, "read"), path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    if digest.hexdigest() != record.sha256:
        report.findings.append(
            f"{path}: SHA-256 {digest.hexdigest()} is not the manifest's {record.sha256}"
        )


def _check_experts(report: VerifyReport, path: Path, layer: int, container: Container) -> None:
    experts = container.manifest.experts
    try:
        file = open_expert_file(path, layer, experts)
    except ContainerError as problem:
        report.findings.append(str(problem))
        return
    for expert in range(experts.num_experts):
        try:
            file.check_expert(expert)
        except ContainerError as problem:
            report.findings.append(str(problem))
        report.num_experts += 1


def _check_dense(report: VerifyReport, container: Container) -> None:
    """Scales and float32 values are finite; what pads a matrix is what padding should be."""
    for name, record in container.manifest.tensors.items():
        where = f"{container.path / DENSE_NAME}: {name!r}"
        if record.weight_format == FLOAT32:
            if not np.isfinite(container.read_entry(name).view(np.float32)).all():
                report.findings.append(f"{where} has a value that is not finite")
        elif record.weight_format in INTEGER_BITS:
            finding = _find_matrix_error(container, name, record)
            if finding is not None:
                report.findings.append(f"{where} has {finding}")


def _find_matrix_error(container: Container, name: str, record: TensorRecord) -> str | None:
    """What is wrong with scales or padding, looked at some blocks of 16 rows at a time, or None."""
    rows, cols = record.shape
    codes_of_block = code_bytes(record.weight_format, ROW_BLOCK, cols)
    scales_of_block = scale_bytes(record.weight_format, ROW_BLOCK, cols)
    step = max(1, BLOCK_BYTES // codes_of_block)
    for first in range(0, round_up(rows, ROW_BLOCK) // ROW_BLOCK, step):
        count = min(step * ROW_BLOCK, rows - first * ROW_BLOCK)
        codes = container.read_entry(
            name + ".codes",
            first * codes_of_block,
            code_bytes(record.weight_format, count, cols),
        )
        scales = container.read_entry(
            name + ".scales",
            first * scales_of_block,
            scale_bytes(record.weight_format, count, cols),
        )
        numbers = view_scales(record.weight_format, scales)
        try:
            matrix = _ext.Matrix(record.weight_format, count, cols, codes, numbers)
        except ContainerError:
            return "a scale that is not finite"
        if not matrix.has_clean_padding():
            return "a padded code that is not the offset, or a padded scale that is not 0"
    return None


def _compare(
    report: VerifyReport,
    path: Path,
    source: Path,
    progress: Progress | None,
    tokenizer: Path | None,
) -> None:
    with Container.open(path) as container, open_checkpoint(source) as checkpoint:
        plan = plan_container(checkpoint, get_recipe(container.manifest.recipe), tokenizer)
        if container.manifest.source != plan.source:
            report.findings.append(
                f"{path}: made from another checkpoint than {source} (hashes of config or headers differ)"
            )
        total, done = sum(plan.file_bytes.values()), 0
        for name, nbytes in plan.file_bytes.items():
            finding = _compare_file(plan, name, path / name)
            if finding is not None:
                report.findings.append(finding)
            report.num_compared += 1
            done += nbytes
            if progress is not None:
                progress("compare", done, total)


def _compare_file(plan: ContainerPlan, name: str, path: Path) -> str | None:
    """The first difference between a file and what the checkpoint makes of it, or None."""
    if not path.is_file() or path.stat().st_size != plan.file_bytes[name]:
        return f"{path}: missing or not {plan.file_bytes[name]} bytes, as the checkpoint asks for"
    differing: list[int] = []
    with storage_errors(path, 0, "open"):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def compare(data: memoryview, offset: int) -> None:
        if differing:
            return
        found = np.empty(len(data), np.uint8)
        count = pread_full(descriptor, found.data, offset, path)
        unequal = (
            np.flatnonzero(found != np.frombuffer(data, np.uint8))
            if count == len(data)
            else np.zeros(1, np.intp)
        )
        if unequal.size:
            differing.append(offset + int(unequal[0]))

    try:
        plan.produce(name, compare)
    finally:
        os.close(descriptor)
    if not differing:
        return None
    place = _describe(plan.layouts.get(name), differing[0])
    return f"{path}: differs from the checkpoint at byte {differing[0]}{place}"


def _describe(layout: SfiLayout | None, offset: int) -> str:
    """Which expert and part of it an offset of an .sfi file is in."""
    if layout is None:
        return ""
    if offset < layout.header_bytes:
        return " (header)"
    expert, within = divmod(offset - layout.header_bytes, layout.blob_bytes)
    part = next(
        (
            name
            for name, (begin, size) in zip(SECTION_NAMES, layout.sections, strict=True)
            if begin <= within < begin + size
        ),
        "padding",
    )
    return f" (expert {layout.layer}:{expert}, {part})"
