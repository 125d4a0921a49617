"""The fields of a Mixtral configuration that its arithmetic needs, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparseflow.errors import UnsupportedError
from sparseflow.layers.workspace import LayerSizes, workspace_bytes
from sparseflow.models import fields


@dataclass(frozen=True, slots=True)
class MixtralConfig:
    """Under the names that containers use: num_experts is num_local_experts, moe_intermediate_size
    is intermediate_size.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    max_position_embeddings: int
    rms_norm_eps: float

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> MixtralConfig:
        """From the text configuration of a checkpoint or container.

        Raises ContainerError if a field is missing or out of range, UnsupportedError for a variant
        that would compute something else.
        """
        sizes = {name: fields.size(config, name) for name in _SIZES}
        fields.refuse_others(
            (
                ("hidden_act", config.get("hidden_act", "silu"), "silu"),
                ("attention_bias", config.get("attention_bias", False), False),
                ("rope_type", fields.rope_type(config), "default"),
                ("partial_rotary_factor", fields.rotary_factor(config, 1.0), 1.0),
            )
        )
        _refuse_sliding_window(config, sizes["max_position_embeddings"])
        fields.check_divides(sizes, "num_key_value_heads", "num_attention_heads")
        fields.check_top_k(sizes)
        fields.check_even(sizes["head_dim"], sizes["head_dim"])
        return cls(
            **sizes,
            rms_norm_eps=fields.number(config.get("rms_norm_eps", 1e-5), "rms_norm_eps"),
        )

    def state_bytes(self, ctx: int, kv_bytes: int) -> int:
        """Keys and values of `ctx` tokens in every layer."""
        keys = self.num_key_value_heads * self.head_dim * ctx * kv_bytes
        return self.num_hidden_layers * 2 * keys

    def workspace_bytes(self, chunk: int) -> int:
        """See layers/workspace.py."""
        mixer = 2 * (self.num_attention_heads + self.num_key_value_heads) * self.head_dim
        sizes = LayerSizes(
            hidden_size=self.hidden_size,
            mixer_size=mixer,
            expert_size=self.moe_intermediate_size,
            num_experts=self.num_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            vocab_size=self.vocab_size,
        )
        return workspace_bytes(sizes, chunk)

    def float_macs(self, position: int) -> int:
        """Scores and sums over the keys so far."""
        heads = self.num_attention_heads * self.head_dim
        return 2 * self.num_hidden_layers * heads * position


_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "max_position_embeddings",
)


def _refuse_sliding_window(config: Mapping[str, Any], max_position: int) -> None:
    """A window as long as the longest sequence hides nothing; a shorter one would."""
    window = config.get("sliding_window")
    if window is not None and fields.size(config, "sliding_window") < max_position:
        raise UnsupportedError(
            f"config.json: sliding_window {window} is not supported; only null, or at least"
            f" max_position_embeddings ({max_position})"
        )
