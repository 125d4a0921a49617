"""The files that ship as the demo: present, small enough, and in agreement with each other."""

from __future__ import annotations

import json

from tokenizers import Tokenizer

from sparseflow.checkpoint.checkpoint import Checkpoint
from sparseflow.demo import checkpoint_path, heldout_path


def test_checkpoint_is_complete_and_fits_the_wheel() -> None:
    folder = checkpoint_path()
    names = {file.name for file in folder.iterdir()}
    assert names >= {"README.md", "config.json", "generation_config.json", "tokenizer.json"}
    assert (folder / "model.safetensors").stat().st_size <= 28_000_000


def test_weights_are_known_tensors_in_bf16() -> None:
    with Checkpoint.open(checkpoint_path()) as checkpoint:
        assert checkpoint.unknown == []
        assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {"BF16"}


def test_tokenizer_has_as_many_entries_as_the_embedding_rows() -> None:
    folder = checkpoint_path()
    config = json.loads((folder / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert tokenizer.token_to_id("<|endoftext|>") == config["eos_token_id"] == 0


def test_held_out_text_is_ascii_and_survives_the_tokenizer() -> None:
    text = heldout_path().read_text(encoding="ascii")
    tokenizer = Tokenizer.from_file(str(checkpoint_path() / "tokenizer.json"))
    assert 100_000 < len(text) <= 200_000
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
