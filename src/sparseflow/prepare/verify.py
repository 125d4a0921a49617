"""Placeholder."""


def verify() -> None: ...
