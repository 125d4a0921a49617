"""Bytes and seconds as people write and read them: G and GiB are 2^30, GB is 10^9; the same for K, M and T."""

from __future__ import annotations

import re

from sparseflow.errors import ConfigError

_PREFIXES = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)(B?)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of a size such as `8G`, `1.5GiB`, `500MB` or `4096`.

    Raises ConfigError if the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise ConfigError(f"not a size: {text!r}; write for example 8G, 1.5GiB, 500MB or 4096")
    power = _PREFIXES[match[2].upper()]
    is_decimal = bool(match[2]) and bool(match[4]) and not match[3]
    return int(float(match[1]) * (1000 if is_decimal else 1024) ** power)


def format_bytes(nbytes: float) -> str:
    """A size for people, in binary units with three significant digits: `66.97 GiB`, `4.00 KiB`, `12 B`."""
    sign, size = ("-", -nbytes) if nbytes < 0 else ("", nbytes)
    if size < 1024:
        return f"{sign}{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1024 or unit == "TiB":
            break
    return f"{sign}{size:.2f} {unit}" if size < 100 else f"{sign}{size:.1f} {unit}"


def format_seconds(seconds: float) -> str:
    """A duration for people: `850 us`, `12.3 ms`, `4.21 s`, `3 min 05 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
