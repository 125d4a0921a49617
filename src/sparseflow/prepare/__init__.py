"""Checkpoint to container: layer by layer, resumable at any moment, with little memory; and the
check of the result.
"""

from sparseflow.prepare.prepare import prepare
from sparseflow.prepare.verify import verify

__all__ = ["prepare", "verify"]
