"""The files beside the weights that a text model needs: configuration, tokenizer, chat template."""

from __future__ import annotations

from sparseflow.checkpoint.model_config import CONFIG_NAME

MAX_COMPANION_BYTES = 64 << 20
COMPANION_NAMES = (
    CONFIG_NAME,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "chain.json",  # the known greedy text of a synthetic model
)
