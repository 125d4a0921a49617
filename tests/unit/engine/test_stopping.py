from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sparseflow.engine.stopping import StopStrings

LETTERS = st.text(alphabet="ab", max_size=20)


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    watcher = StopStrings(stops)
    shown = [watcher.push(piece) for piece in pieces]
    return [*shown, watcher.finish()], watcher.is_stopped


def expected(stops: list[str], text: str) -> tuple[str, bool]:
    """Letter by letter: the first stop string to be complete ends the text; the longest if several are."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3),
    st.lists(LETTERS, max_size=8),
)
def test_the_result_depends_on_the_text_alone(stops: list[str], pieces: list[str]) -> None:
    shown, is_stopped = run(stops, pieces)
    assert ("".join(shown), is_stopped) == expected(stops, "".join(pieces))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3), LETTERS)
def test_only_what_may_begin_a_stop_string_is_held_back(stops: list[str], text: str) -> None:
    watcher = StopStrings(stops)
    shown = watcher.push(text)
    if not watcher.is_stopped:
        held = text[len(shown) :]
        assert shown + held == text
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_over_three_pieces_is_never_shown() -> None:
    assert run(["\n\nUser:"], ["Yes.\n", "\nUs", "er: no"]) == (["Yes.", "", "", ""], True)


def test_a_beginning_that_is_not_continued_is_shown() -> None:
    assert run(["\n\nUser:"], ["Yes.\n", "\nUs", "ual"]) == (["Yes.", "", "\n\nUsual", ""], False)


def test_a_beginning_at_the_end_of_the_text_is_shown_at_the_end() -> None:
    assert run(["END"], ["the EN"]) == (["the ", "EN"], False)


def test_nothing_is_held_back_without_stop_strings() -> None:
    assert run([], ["a", "b"]) == (["a", "b", ""], False)
