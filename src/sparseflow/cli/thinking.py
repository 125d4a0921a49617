"""Keeps a model's reasoning (what stands between <think> and </think>) off the screen, also if tags come in pieces."""

from __future__ import annotations

_OPEN, _CLOSE = "<think>", "</think>"


class ThinkingFilter:
    """Passes text through, except what lies between the tags. Feed it pieces; `finish` gives what was held back."""

    def __init__(self, *, is_inside: bool) -> None:
        self._is_inside = is_inside
        self._is_start = False
        self._held = ""

    def feed(self, piece: str) -> str:
        """What of the text so far may be shown now."""
        self._held += piece
        shown = ""
        while True:
            tag = _CLOSE if self._is_inside else _OPEN
            before, found, after = self._held.partition(tag)
            if not found:
                keep = _overlap(before, tag)
                visible, self._held = before[: len(before) - keep], before[len(before) - keep :]
                return shown + self._show(visible)
            shown += self._show(before)
            self._held = after
            self._is_inside = not self._is_inside
            self._is_start = not self._is_inside

    def finish(self) -> str:
        """The rest, when no more text comes."""
        rest, self._held = self._held, ""
        return self._show(rest)

    def _show(self, text: str) -> str:
        if self._is_inside:
            return ""
        if self._is_start:  # templates put blank lines between the reasoning and the answer
            text = text.lstrip("\n")
            self._is_start = not text
        return text


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that may be the beginning of `tag`."""
    return next(
        (n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0
    )
