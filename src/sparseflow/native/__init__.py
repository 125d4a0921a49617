"""The only door to the C++ core: `from sparseflow.native import _ext`.

`_ext.pyi` is its typed face; `reference` is a readable NumPy twin of every op, which only tests use.
"""
