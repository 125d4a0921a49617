"""Writes checkpoints shard by shard; or stands for one that is never written, for `prepare` to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sparseflow.checkpoint.checkpoint import Checkpoint, CheckpointTensor
from sparseflow.checkpoint.header import Header
from synthetic.layout import Tensor
from synthetic.noise import value_blocks
from synthetic.weights import ChainWeights

BLOCK_VALUES = 1 << 21
CHAIN_NAME = "chain.json"

Blocks = Callable[[Tensor], Iterator[NDArray[np.uint16]]]
"""The values of a tensor, some at a time."""


@dataclass(frozen=True)
class Plan:
    """A checkpoint before it is written."""

    config: dict[str, Any]
    """config.json."""
    shards: list[list[Tensor]]
    seed: int
    weights: ChainWeights | None = None
    """None: a checkpoint without a chain, random by name."""

    def blocks(self, tensor: Tensor) -> Iterator[NDArray[np.uint16]]:
        """The values of a tensor, some at a time."""
        if self.weights is None:
            yield from value_blocks(tensor, self.seed)
            return
        count = tensor.nbytes // 2
        for begin in range(0, count, BLOCK_VALUES):
            yield self.weights.read(tensor, begin, min(BLOCK_VALUES, count - begin))


def write_checkpoint(directory: Path, plan: Plan, *, is_empty: bool) -> None:
    """config.json, a tokenizer, the chain if there is one, the shards, and the index if there is more than one.

    If `is_empty`, shards have a hole where the payload would be.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(plan.config, indent=2) + "\n")
    vocab_size = plan.config.get("text_config", plan.config)["vocab_size"]
    (directory / "tokenizer.json").write_text(json.dumps(word_tokenizer(vocab_size)) + "\n")
    if plan.weights is not None:
        document = json.dumps(plan.weights.chain.document(), separators=(",", ":"))
        (directory / CHAIN_NAME).write_text(document + "\n")
    weight_map = {}
    for number, tensors in enumerate(plan.shards, 1):
        name = (
            f"model-{number:05d}-of-{len(plan.shards):05d}.safetensors"
            if len(plan.shards) > 1
            else "model.safetensors"
        )
        weight_map.update(dict.fromkeys((tensor.name for tensor in tensors), name))
        write_shard(directory / name, tensors, None if is_empty else plan.blocks)
    if len(plan.shards) > 1:
        total = sum(tensor.nbytes for tensors in plan.shards for tensor in tensors)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def write_shard(path: Path, tensors: list[Tensor], blocks: Blocks | None) -> None:
    """One safetensors file; without `blocks`, with a hole where the payload would be."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        if blocks is None:
            file.truncate(8 + len(text) + offset)
            return
        for tensor in tensors:
            for block in blocks(tensor):
                file.write(block.data)


def word_tokenizer(vocab_size: int) -> dict[str, Any]:
    """A tokenizer.json in which the word `t17` is the token 17, so that text names token ids."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {f"t{i}": i for i in range(vocab_size)},
            "unk_token": "t0",
        },
    }


class UnwrittenCheckpoint(Checkpoint):
    """A checkpoint whose shards are holes on disk; their payload is made when it is read."""

    def __init__(
        self, directory: Path, config: dict[str, Any], headers: list[Header], plan: Plan
    ) -> None:
        super().__init__(directory, config, headers)
        assert plan.weights is not None, "only weights of a chain can be read by range"
        self.weights = plan.weights
        self._by_file: dict[Path, list[CheckpointTensor]] = {}
        for tensor in self.tensors.values():
            self._by_file.setdefault(tensor.file, []).append(tensor)

    @classmethod
    def write(cls, directory: Path, plan: Plan) -> Self:
        """Writes all but the payload to `directory`, which has to stay while the checkpoint is read."""
        write_checkpoint(directory, plan, is_empty=True)
        opened = Checkpoint.open(directory)
        return cls(directory, opened.config, opened.headers, plan)

    def read_into(self, file: Path, offset: int, buffer: memoryview) -> None:
        out = np.frombuffer(buffer, np.uint16)
        end, done = offset + len(buffer), 0
        for tensor in self._by_file[file]:
            low = max(offset, tensor.offset)
            high = min(end, tensor.offset + tensor.nbytes)
            if low >= high:
                continue
            source = Tensor(tensor.name, tensor.shape)
            values = self.weights.read(source, (low - tensor.offset) // 2, (high - low) // 2)
            out[(low - offset) // 2 : (high - offset) // 2] = values
            done += high - low
        assert done == len(buffer), "only the payload can be read"
