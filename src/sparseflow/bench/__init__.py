"""Measured runs of this engine and of peers, each in a process of its own, with the hardware's limit beside them.

Returns numbers and documents; prints nothing. How things are measured: docs/benchmarks.md.
"""
