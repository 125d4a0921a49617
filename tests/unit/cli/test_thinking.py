"""Reasoning stays off the screen, however the text is cut into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparseflow.cli.thinking import ThinkingFilter


def _shown(pieces: list[str], *, is_inside: bool) -> str:
    hidden = ThinkingFilter(is_inside=is_inside)
    return "".join(hidden.feed(piece) for piece in pieces) + hidden.finish()


@given(st.lists(st.integers(1, 40), max_size=8))
def test_result_does_not_depend_on_the_cut(cuts: list[int]) -> None:
    text = "before <think>a < b </thin or </think>\n\nthe answer: 1 < 2"
    pieces, start = [], 0
    for cut in cuts:
        pieces.append(text[start : start + cut])
        start += cut
    pieces.append(text[start:])
    assert _shown(pieces, is_inside=False) == "before the answer: 1 < 2"


def test_text_of_a_prompt_that_opened_the_reasoning_is_hidden_until_it_closes() -> None:
    assert _shown(["hm, ", "well</th", "ink>\n", "\nYes."], is_inside=True) == "Yes."


def test_text_without_reasoning_passes_unchanged() -> None:
    assert _shown(["a <b> ", "c <", "thin d"], is_inside=False) == "a <b> c <thin d"


def test_reasoning_that_never_ends_shows_nothing() -> None:
    assert _shown(["on and on", " and </thin"], is_inside=True) == ""


def test_shown_text_comes_as_soon_as_it_can() -> None:
    hidden = ThinkingFilter(is_inside=False)
    assert hidden.feed("plain text") == "plain text"
    assert hidden.feed("<thi") == ""
    assert hidden.feed("s") == "<this"
