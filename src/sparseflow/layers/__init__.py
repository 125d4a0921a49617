"""Blocks that families share: thin Python over the native operations; weights come from a
container.
"""
