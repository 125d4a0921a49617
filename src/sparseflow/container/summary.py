"""A container's tensors by class, for `inspect`: the same lines as a checkpoint's."""

from __future__ import annotations

from sparseflow.checkpoint.summary import ClassSummary, summarize
from sparseflow.checkpoint.tensor_classes import TensorClass
from sparseflow.container.dense_layout import dense_tensors, entries_of
from sparseflow.container.reader import Container
from sparseflow.container.recipes import get_recipe


def summarize_container(container: Container) -> list[ClassSummary]:
    """Routed experts count as three tensors each and with the padding of their blobs."""
    tensors: list[tuple[TensorClass | None, int]] = [
        (tensor.tensor_class, sum(entry.nbytes for entry in entries_of(tensor.name, tensor.record)))
        for tensor in dense_tensors(container.config, get_recipe(container.manifest.recipe))
    ]
    for layout in container.layouts:
        num_tensors = 3 * layout.num_experts
        tensors += [(TensorClass.ROUTED_EXPERT, layout.blob_bytes // 3)] * (num_tensors - 1)
        rest = layout.num_experts * layout.blob_bytes - (num_tensors - 1) * (layout.blob_bytes // 3)
        tensors.append((TensorClass.ROUTED_EXPERT, rest))
    return summarize(tensors, container.config)
