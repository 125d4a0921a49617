"""Levels of the signal: what gates, neurons and weights aim at, in numbers that no weight format rounds.

All weights are 127 times a power of two. Gates sit where the product does not change with the norm of the hidden state
to first order: z * silu(z) has its turning point at -2.2177, silu(z) and z * sigmoid(-z) at -1.2785 and 1.2785.
"""

from __future__ import annotations

import math

GROUP = 64
RESERVED = 3 * GROUP
RMS = 64.0
"""Root mean square of every embedding; large against what blocks write, so that routers see mainly the embedding."""
CONSTANT = 71.5
NEURONS = 16
"""Of each expert, the last ones, that write the known amount."""
MARGIN = 0.04
"""Of what the chosen experts of a layer write; about half of the smallest router weight."""
EXPERT_GATE, EXPERT_UP, SHARED_GATE = -2.2177, -71.0, 4.0
MIXER_GATE, ATTENTION_VALUE, DELTA_KEY, DELTA_VALUE = -1.2785, 4.0, 4.0, 16.0
TAP = 0.25
ALARM_DEPTH = 14.0
"""About how far below zero a healthy alarm neuron's gate is: silu(-10) is -0.0005."""
HEAD_GAIN = 127.0
"""The final norm's weight, less 1, for the channels that the head reads."""
HEAD_WEIGHT = 127 * 2.0**-10


def exact(value: float) -> float:
    """The nearest number (by ratio) of its sign that is 127 times a power of two."""
    return math.copysign(127 * 2.0 ** round(math.log2(abs(value) / 127)), value)


def drive(target: float) -> tuple[float, int]:
    """The weight, and in how many of the constant channels, that give about `target`."""
    each = abs(target) * RMS / CONSTANT
    weight = 127 * 2.0 ** math.ceil(math.log2(each / GROUP / 127))
    return math.copysign(weight, target), round(each / weight)


def level(target: float) -> float:
    """What the channels that `drive` names give."""
    weight, num_columns = drive(target)
    return weight * num_columns * CONSTANT / RMS


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + math.exp(-x))


def routed_weight() -> float:
    """From each neuron of a routed expert to its layer's channels; about 8 in all."""
    return exact(8.0 / _neurons())


def shared_weight() -> float:
    """From each neuron of a shared expert; about 4 in all."""
    return exact(4.0 / _neurons())


def delta_weight() -> float:
    """From each of a group of a delta block's output channels; about 4 in all."""
    return exact(4.0 / _delta_channels())


def attention_weight() -> float:
    """From each of a group of an attention block's output channels; about 4 in all."""
    return exact(4.0 / _attention_channels())


def block_amounts(layer_type: str) -> tuple[float, float, float]:
    """What the mixer, the chosen experts together and the shared expert of a layer write."""
    is_delta = layer_type == "linear_attention"
    delta, attention = (
        _delta_channels() * delta_weight(),
        _attention_channels() * attention_weight(),
    )
    shared = _neurons() * shared_weight() * sigmoid(level(SHARED_GATE))
    return delta if is_delta else attention, _neurons() * routed_weight(), shared


def _neurons() -> float:
    gate = level(EXPERT_GATE)
    return NEURONS * gate * sigmoid(gate) * level(EXPERT_UP)


def _delta_channels() -> float:
    """Normalised outputs, all 1, times silu(z)."""
    gate = level(MIXER_GATE)
    return GROUP * gate * sigmoid(gate)


def _attention_channels() -> float:
    return GROUP * sigmoid(level(MIXER_GATE)) * level(ATTENTION_VALUE)
