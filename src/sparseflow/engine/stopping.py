"""When a text ends: stop strings, which may spread over several tokens."""

from __future__ import annotations

from collections.abc import Iterable


class StopStrings:
    """Watches a stream of text for the first of several strings.

    The result depends on the text alone, not on how it was cut into pieces: the string that is
    completed first ends the text (of two completed by the same character, the longer), and text
    that might begin a stop string is held back.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.is_stopped = False

    def push(self, text: str) -> str:
        """Adds text; returns what may be shown now. Once `is_stopped` is true the rest is
        dropped.
        """
        if self.is_stopped:
            return ""
        self._held += text
        start = self._find_first()
        if start is not None:
            self.is_stopped = True
            shown, self._held = self._held[:start], ""
            return shown
        keep = self._unfinished_length()
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """Returns what was held back: the text ended before a stop string was complete."""
        shown, self._held = self._held, ""
        return shown

    def _find_first(self) -> int | None:
        matches = []
        for stop in self._stops:
            start = self._held.find(stop)
            if start >= 0:
                matches.append((start + len(stop), start))
        return min(matches)[1] if matches else None

    def _unfinished_length(self) -> int:
        """Length of the longest end of the held text that is a proper beginning of a stop
        string.
        """
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest
