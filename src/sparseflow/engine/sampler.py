"""Chooses the next token: the face of the native sampler, which is under the numeric contract."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparseflow.config import SamplingParams
from sparseflow.errors import ContainerError
from sparseflow.native import _ext


class Sampler:
    """Stateless between calls: the random number depends on the seed and the position alone."""

    def __init__(self, runtime: _ext.Runtime, params: SamplingParams, num_valid: int) -> None:
        """num_valid: the tokenizer's size; larger ids are never sampled."""
        self._runtime = runtime
        self._num_valid = num_valid
        self._params = _ext.SampleParams(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            seed=params.seed,
        )

    def sample(
        self, logits: NDArray[np.float32], history: NDArray[np.int32], num_prompt: int
    ) -> int:
        """The id that follows `history` [n], of which the first num_prompt ids are the prompt;
        logits [vocab_size].
        """
        check_finite(self._runtime, logits, len(history))
        return self._runtime.sample(
            logits, history, self._params, len(history), self._num_valid, num_prompt
        )


def check_finite(runtime: _ext.Runtime, logits: NDArray[np.float32], position: int) -> None:
    """Raises ContainerError if a logit is infinite or not a number: such a result is never hashed
    or sampled.
    """
    if not runtime.is_finite(logits):
        raise ContainerError(
            f"a logit for position {position} is not finite: damaged weights, or a model that overflows float32; "
            "run `sparseflow verify` on the container"
        )
