"""How many tensors and bytes each class has, and how many of the bytes one token touches at most."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.checkpoint.tensor_classes import TensorClass

NOT_CARRIED = (TensorClass.VISION, TensorClass.MTP)


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """One line of `inspect`."""

    tensor_class: str
    num_tensors: int
    nbytes: int
    bytes_per_token: int
    """Worst case: every chosen expert read, nothing cached."""
    formats: tuple[str, ...] = ()
    """Types of the tensors as they are stored, those of the most bytes first."""


def summarize_checkpoint(checkpoint: Checkpoint) -> list[ClassSummary]:
    """A line for each class, also for those without tensors, and one for tensors that nothing claims, if there are
    any.
    """
    return summarize(checkpoint.stored_sizes(), checkpoint.config)


def summarize(
    tensors: Iterable[tuple[TensorClass | None, int, str]], config: dict[str, Any]
) -> list[ClassSummary]:
    """Lines for tensors given as class, bytes and format."""
    counts: dict[TensorClass | None, int] = dict.fromkeys(TensorClass, 0)
    sizes: dict[TensorClass | None, Counter[str]] = {key: Counter() for key in counts}
    for tensor_class, nbytes, stored_as in tensors:
        counts[tensor_class] = counts.get(tensor_class, 0) + 1
        sizes.setdefault(tensor_class, Counter())[stored_as] += nbytes
    embedding_bytes = sizes[TensorClass.EMBEDDING].total()
    lines = []
    for tensor_class, count in counts.items():
        nbytes = sizes[tensor_class].total()
        formats = tuple(name for name, _ in sizes[tensor_class].most_common())
        touched = _bytes_per_token(tensor_class, nbytes, config)
        if tensor_class == TensorClass.HEAD and not count and config["tie_word_embeddings"]:
            touched = embedding_bytes  # a tied head multiplies with all of the embedding
        lines.append(ClassSummary(tensor_class or "unknown", count, nbytes, touched, formats))
    return lines


def _bytes_per_token(tensor_class: TensorClass | None, nbytes: int, config: dict[str, Any]) -> int:
    if tensor_class is None or tensor_class in NOT_CARRIED:
        return 0
    if tensor_class == TensorClass.ROUTED_EXPERT:
        return int(nbytes // config["num_experts"] * config["num_experts_per_tok"])
    if tensor_class == TensorClass.EMBEDDING:
        return int(nbytes // config["vocab_size"])
    return nbytes


def not_carried(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """Class -> names of the tensors that no container takes over, numbers that only count written as ranges."""
    names: dict[str, list[str]] = {str(tensor_class): [] for tensor_class in NOT_CARRIED}
    for tensor in checkpoint.tensors.values():
        if tensor.identity is not None and tensor.identity.tensor_class in NOT_CARRIED:
            names[tensor.identity.tensor_class].append(tensor.name)
    return {tensor_class: found for tensor_class, found in names.items() if found}


def collapse_names(names: Iterable[str]) -> list[str]:
    """Names that differ in a number alone as one: `blocks.0.norm`, `blocks.1.norm` -> `blocks.{0..1}.norm`."""
    numbers: dict[str, list[int]] = {}
    for name in names:
        match = _NUMBER.search(name)
        pattern = name if match is None else f"{name[: match.start()]}.{{}}.{name[match.end() :]}"
        numbers.setdefault(pattern, []).extend([] if match is None else [int(match[1])])
    collapsed = []
    for pattern, found in numbers.items():
        if not found:
            collapsed.append(pattern)
        elif len(found) == max(found) - min(found) + 1 and len(found) > 1:
            collapsed.append(pattern.replace("{}", f"{{{min(found)}..{max(found)}}}"))
        else:
            collapsed.extend(pattern.replace("{}", str(number)) for number in found)
    return collapsed


_NUMBER = re.compile(r"\.(\d+)\.")
