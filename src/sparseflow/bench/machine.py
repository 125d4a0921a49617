"""What a result must carry to mean something later: machine, code and container."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from sparseflow.container.dense_layout import EMBEDDING_NAME, entries_of
from sparseflow.container.format import SfiLayout
from sparseflow.container.manifest import Manifest, read_manifest
from sparseflow.host.disk import disk_facts
from sparseflow.host.memory import memory_facts
from sparseflow.planning.floor import largest_cache_bytes

SOURCE = Path(__file__).parent
_HEAD = "lm_head.weight"


def describe_machine() -> dict[str, Any]:
    """CPU, memory and kernel."""
    memory = memory_facts()
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cache_bytes": largest_cache_bytes(),
        "memory_bytes": memory.total_bytes,
        "memory_limit_bytes": memory.limit_bytes,
        "swap_bytes": memory.swap_bytes,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def describe_code() -> dict[str, Any]:
    """Version, and the commit with whether the tree was clean where this is a source checkout."""
    from importlib.metadata import version

    commit = _git("rev-parse", "HEAD")
    return {
        "version": version("sparseflow"),
        "commit": commit or None,
        "is_clean": None if commit is None else _git("status", "--porcelain") == "",
    }


def describe_container(path: Path) -> dict[str, Any]:
    """Recipe with bits per weight, checkpoint identity, and the filesystem and device below it."""
    manifest = read_manifest(path)
    disk = disk_facts(path)
    return {
        "path": str(path),
        "model_type": manifest.model_type,
        "recipe": manifest.recipe,
        "bits_per_weight": bits_per_weight(manifest),
        "num_layers": manifest.experts.num_layers,
        "num_experts": manifest.experts.num_experts,
        "experts_bytes": manifest.experts.num_layers * SfiLayout.of(manifest.experts).file_bytes,
        "checkpoint": manifest.source,
        "filesystem": disk.filesystem,
        "device": disk.device,
    }


def bits_per_weight(manifest: Manifest) -> dict[str, float]:
    """Bits, scales included, of a weight of the routed experts, of the other matrices, of the head, and of all."""
    experts, layout = manifest.experts, SfiLayout.of(manifest.experts)
    num = experts.num_layers * experts.num_experts
    sums = {
        "experts": [num * layout.payload_bytes, num * sum(r * c for r, c in layout.shapes)],
        "dense": [0, 0],
        "head": [0, 0],
    }
    for name, record in manifest.tensors.items():
        if len(record.shape) == 2 and name != EMBEDDING_NAME:
            kind = "head" if name == _HEAD else "dense"
            sums[kind][0] += sum(entry.nbytes for entry in entries_of(name, record))
            sums[kind][1] += record.shape[0] * record.shape[1]
    sums["all"] = [sum(pair[i] for pair in sums.values()) for i in (0, 1)]
    return {
        kind: round(8 * nbytes / max(1, weights), 4) for kind, (nbytes, weights) in sums.items()
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _git(*arguments: str) -> str | None:
    """A git command's answer about the checkout that this module lies in; None outside of one."""
    try:
        done = subprocess.run(
            ["git", "-C", str(SOURCE), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
