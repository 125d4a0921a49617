"""Synthetic qwen3_5_moe checkpoints: names, shapes, values, and a chain whose greedy text is known."""
