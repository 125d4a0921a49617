"""The command line: one file per command, and the only package that prints or reads the environment.

A command file defines one function named as the command, with typer annotations; main.py registers it. Heavy imports
(numpy, the native extension, the engine) stand inside that function, so that `sparseflow --version` stays quick.
"""
