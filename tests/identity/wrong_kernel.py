"""The command line with a kernel that is wrong, for the proof that the ladder notices.

    python tests/identity/wrong_kernel.py verify demo --ladder --quick

Every row runs through this file too. In rows with `--isa=portable` one number in the routed experts' output of the
last layer has one wrong bit, once, in the sixth decode step. The package itself ships no way to compute wrongly.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from sparseflow.cli.main import main
from sparseflow.evaluation import row_process
from sparseflow.native import _ext

WRONG_STEP = 6
"""Step 0 is computed by the prefill; a decode step is one token through the last layer."""


def spoil(last_layer: int) -> None:
    """Replaces moe_forward by one whose result is wrong at WRONG_STEP."""
    right, steps = _ext.moe_forward, 0

    def wrong(*arguments: Any) -> None:
        nonlocal steps
        right(*arguments)
        _, _, layer, x, _, _, _, residual, _ = arguments
        if layer == last_layer and len(x) == 1:
            steps += 1
            if steps == WRONG_STEP:
                residual.view(np.uint32)[0, 0] ^= 1 << 20

    _ext.moe_forward = wrong


if __name__ == "__main__":
    row_process.COMMAND = (sys.executable, __file__)
    if "--isa=portable" in sys.argv:
        from pathlib import Path

        from sparseflow.container.manifest import read_manifest

        spoil(read_manifest(Path(sys.argv[2])).experts.num_layers - 1)
    sys.exit(main())
