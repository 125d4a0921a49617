"""Checkpoints made of checkpoints: weights put through a peer's format and back, outlier channels put in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from sparseflow.checkpoint.checkpoint import Checkpoint, CheckpointTensor
from sparseflow.checkpoint.tensor_classes import TensorClass, TensorRow, all_rows
from sparseflow.container.recipes import Recipe
from sparseflow.prepare.source import copied_files
from synthetic.files import write_shard
from synthetic.layout import Tensor
from synthetic.pool import to_bf16, widen

NUM_OUTLIERS, OUTLIER_FACTOR = 8, 50.0
Change = Callable[[TensorRow, NDArray[np.float32]], NDArray[np.float32]]
"""New values of a tensor, [rows, cols] (all experts' rows of a fused one) or [size]."""


def alter(source: Path, target: Path, change: Change) -> Path:
    """Writes the text model in `source` to `target` with every tensor changed; the values are rounded to BF16.

    A tied head becomes a tensor of its own, so that a change can differ from the embedding's.
    """
    target.mkdir(parents=True)
    with Checkpoint.open(source) as checkpoint:
        origins = dict(_text_tensors(checkpoint))

        def blocks(tensor: Tensor) -> Iterator[NDArray[np.uint16]]:
            row, origin = origins[tensor]
            bits = np.empty(origin.nbytes // 2, np.uint16)
            checkpoint.read_into(origin.file, origin.offset, bits.view(np.uint8).data)
            shape = (-1,) if len(tensor.shape) == 1 else (-1, tensor.shape[-1])
            yield to_bf16(np.ascontiguousarray(change(row, widen(bits).reshape(shape)), np.float32))

        write_shard(target / "model.safetensors", list(origins), blocks)
        for name in copied_files(checkpoint):
            (target / name).write_bytes((source / name).read_bytes())
    config = json.loads((source / "config.json").read_text())
    config["tie_word_embeddings"] = False
    config.get("text_config", {}).pop("tie_word_embeddings", None)
    (target / "config.json").write_text(json.dumps(config))
    return target


def _text_tensors(
    checkpoint: Checkpoint,
) -> Iterator[tuple[Tensor, tuple[TensorRow, CheckpointTensor]]]:
    """Every tensor of the text model with its row and where its values come from."""
    for tensor in checkpoint.tensors.values():
        if tensor.dtype != "BF16":
            raise ValueError(f"{tensor.name} is {tensor.dtype}; only BF16 checkpoints are read")
        if tensor.identity is not None and tensor.identity.row is not None:
            yield Tensor(tensor.name, tensor.shape), (tensor.identity.row, tensor)
    if checkpoint.config["tie_word_embeddings"]:
        (head,) = [
            row for row in all_rows(checkpoint.family) if row.tensor_class == TensorClass.HEAD
        ]
        embedding = checkpoint.find("embed_tokens.weight")
        assert embedding is not None, "a checkpoint has an embedding"
        yield Tensor("lm_head.weight", embedding.shape), (head, embedding)


def pass_through(recipe: Recipe, types: dict[str, str]) -> Change:
    """What `recipe` stores in a format of `types` goes through gguf's type of that name and back."""

    def change(row: TensorRow, values: NDArray[np.float32]) -> NDArray[np.float32]:
        name = types.get(recipe.format_of(row))
        return values if name is None else round_trip(values, name)

    return change


def round_trip(values: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    """Through a gguf type and back; rows [rows, cols] are padded with zeros to whole blocks."""
    kind = gguf.GGMLQuantizationType[name]
    block = gguf.GGML_QUANT_SIZES[kind][0]
    cols = values.shape[1]
    padded = np.pad(values, ((0, 0), (0, -cols % block)))
    back = gguf.quants.dequantize(gguf.quants.quantize(padded, kind), kind)
    return np.asarray(back[:, :cols], np.float32)


def with_outliers(kind: str, hidden_size: int, seed: int) -> Change:
    """8 of the hidden channels 50 times the others, all of them as much smaller as keeps the size of what is computed.

    `activations`: in what matrices read, by the norms before them; `weights`: in the columns of those matrices;
    `both`: in what matrices read, and their columns smaller by as much, so that the function stays.
    REQUIRES: a family whose norms multiply by 1 + weight.
    """
    random = np.random.Generator(np.random.Philox(key=seed))
    scale = np.ones(hidden_size, np.float32)
    scale[random.choice(hidden_size, NUM_OUTLIERS, replace=False)] = OUTLIER_FACTOR
    scale /= np.sqrt((scale**2).mean())

    def change(row: TensorRow, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if row.tensor_class == TensorClass.NORM and row.shape == ("hidden_size",):
            return values if kind == "weights" else scale * (1 + values) - 1
        if row.tensor_class == TensorClass.EMBEDDING or row.shape[-1] != "hidden_size":
            return values
        if kind == "weights" and not row.is_precise:
            return values * scale
        return values / scale if kind == "both" else values

    return change
