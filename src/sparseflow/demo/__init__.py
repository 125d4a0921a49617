"""The small Mixture-of-Experts model that ships with the package, and text it has not seen.

A qwen3_5_moe checkpoint as Transformers saves it; model/README.md is its model card.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def checkpoint_path() -> Path:
    """The directory of the demo's checkpoint: config, weights in BF16, tokenizer and model card."""
    return Path(str(resources.files("sparseflow.demo"))) / "model"


def heldout_path() -> Path:
    """Text that was held out of the demo's training, from all of its sources; ASCII, under 200 KB."""
    return Path(str(resources.files("sparseflow.demo"))) / "heldout.txt"
