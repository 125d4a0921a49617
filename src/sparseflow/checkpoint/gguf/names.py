"""Which tensor of a checkpoint a GGUF tensor holds, and what llama.cpp's converter did to it that has to be undone.

Sources: files that the converter makes of checkpoints with known values, compared tensor by tensor
(benchmarks/peers/check_converter.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto


class Undo(Enum):
    """What a reader does to the stored values."""

    NOTHING = auto()
    MINUS_ONE = auto()
    """Norms that multiply by 1 + weight are stored as 1 + weight."""
    VALUE_ROWS = auto()
    """The last rows are of value heads, which go round the key heads instead of staying with them."""
    VALUE_COLUMNS = auto()
    """So do all columns."""
    DECAY_COLUMNS = auto()
    """So do those of -exp(A_log), which is what a container keeps too: the values stay, but must be below 0."""
    QUERY_PAIRS = auto()
    """The two rows of a query head that rotate together lie side by side instead of half a head apart."""
    KEY_PAIRS = auto()
    """So do those of a key head."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a GGUF tensor, or several together, are in a checkpoint."""

    canonical: str
    """With `{layer}` for a number."""
    undo: Undo = Undo.NOTHING


NEG_EXP_A, A_LOG = "linear_attn.neg_exp_a", "linear_attn.A_log"
_LAYER = "layers.{layer}."
_FUSED_PARTS = ("ffn_gate_exps.weight", "ffn_up_exps.weight")
"""Tensors [experts, rows, hidden] of which a checkpoint makes one, expert by expert gate before up."""
_EXPERTS = {
    "ffn_gate_up_exps.weight": Place(_LAYER + "mlp.experts.gate_up_proj"),
    "ffn_gate_exps.weight": Place(_LAYER + "mlp.experts.gate_up_proj"),
    "ffn_down_exps.weight": Place(_LAYER + "mlp.experts.down_proj"),
}
_ATTENTION = {
    "attn_k.weight": Place(_LAYER + "self_attn.k_proj.weight"),
    "attn_q.weight": Place(_LAYER + "self_attn.q_proj.weight"),
    "attn_v.weight": Place(_LAYER + "self_attn.v_proj.weight"),
    "attn_output.weight": Place(_LAYER + "self_attn.o_proj.weight"),
}
_ENDS = {
    "token_embd.weight": Place("embed_tokens.weight"),
    "output.weight": Place("lm_head.weight"),
}
_DELTA = _LAYER + "linear_attn."
_QWEN35MOE = {
    **_ENDS,
    "output_norm.weight": Place("norm.weight", Undo.MINUS_ONE),
    "attn_norm.weight": Place(_LAYER + "input_layernorm.weight", Undo.MINUS_ONE),
    "post_attention_norm.weight": Place(_LAYER + "post_attention_layernorm.weight", Undo.MINUS_ONE),
    **_ATTENTION,
    "attn_q_norm.weight": Place(_LAYER + "self_attn.q_norm.weight", Undo.MINUS_ONE),
    "attn_k_norm.weight": Place(_LAYER + "self_attn.k_norm.weight", Undo.MINUS_ONE),
    "attn_qkv.weight": Place(_DELTA + "in_proj_qkv.weight", Undo.VALUE_ROWS),
    "attn_gate.weight": Place(_DELTA + "in_proj_z.weight", Undo.VALUE_ROWS),
    "ssm_alpha.weight": Place(_DELTA + "in_proj_a.weight", Undo.VALUE_ROWS),
    "ssm_beta.weight": Place(_DELTA + "in_proj_b.weight", Undo.VALUE_ROWS),
    "ssm_conv1d.weight": Place(_DELTA + "conv1d.weight", Undo.VALUE_ROWS),
    "ssm_a": Place(_LAYER + NEG_EXP_A, Undo.DECAY_COLUMNS),
    "ssm_dt.bias": Place(_DELTA + "dt_bias", Undo.VALUE_COLUMNS),
    "ssm_norm.weight": Place(_DELTA + "norm.weight"),
    "ssm_out.weight": Place(_DELTA + "out_proj.weight", Undo.VALUE_COLUMNS),
    "ffn_gate_inp.weight": Place(_LAYER + "mlp.gate.weight"),
    "ffn_gate_shexp.weight": Place(_LAYER + "mlp.shared_expert.gate_proj.weight"),
    "ffn_up_shexp.weight": Place(_LAYER + "mlp.shared_expert.up_proj.weight"),
    "ffn_down_shexp.weight": Place(_LAYER + "mlp.shared_expert.down_proj.weight"),
    "ffn_gate_inp_shexp.weight": Place(_LAYER + "mlp.shared_expert_gate.weight"),
    **_EXPERTS,
}
_LLAMA = {
    **_ENDS,
    "output_norm.weight": Place("norm.weight"),
    "attn_norm.weight": Place(_LAYER + "input_layernorm.weight"),
    "ffn_norm.weight": Place(_LAYER + "post_attention_layernorm.weight"),
    **_ATTENTION,
    "attn_q.weight": Place(_LAYER + "self_attn.q_proj.weight", Undo.QUERY_PAIRS),
    "attn_k.weight": Place(_LAYER + "self_attn.k_proj.weight", Undo.KEY_PAIRS),
    "ffn_gate_inp.weight": Place(_LAYER + "mlp.gate.weight"),
    **_EXPERTS,
}
PLACES = {"qwen35moe": _QWEN35MOE, "llama": _LLAMA}
"""By general.architecture, then by name without `blk.N.`."""

_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(.+)")


def split_name(name: str) -> tuple[int | None, str]:
    """Number of the block, if the tensor is of one, and the rest of its name."""
    match = _BLOCK.fullmatch(name)
    return (None, name) if match is None else (int(match[1]), match[2])


def other_part(name: str) -> str | None:
    """The name of the tensor that goes with `name`, a gate of experts; None for any other."""
    gate, up = _FUSED_PARTS
    return name.removesuffix(gate) + up if name.endswith("." + gate) else None


def is_second_part(name: str) -> bool:
    """Whether the tensor is claimed by the one that it goes with."""
    return name.endswith("." + _FUSED_PARTS[1])
