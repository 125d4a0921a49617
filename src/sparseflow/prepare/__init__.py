"""Checkpoint to container: layer by layer, resumable at any moment, with little memory; and the
check of the result.
"""
