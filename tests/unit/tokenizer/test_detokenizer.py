from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from sparseflow.tokenizer.detokenizer import create_detokenizer
from sparseflow.tokenizer.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "golden" / "tiny"
BYTE_LEVEL = Tokenizer.open(TINY)


def make_byte_fallback() -> Tokenizer:
    """A vocabulary in the manner of Llama: words with U+2581 for a space, and a token for every byte."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁once", "▁upon", "▁", "a", "▁time", "é", "�", "▁b"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={word: i for i, word in enumerate(words)},
            merges=[],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    decoders = tokenizers.decoders
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(backend, {})


BYTE_FALLBACK = make_byte_fallback()


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = create_detokenizer(tokenizer)
    return [detokenizer.push(i) for i in ids] + [detokenizer.finish()]


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte_level", "fallback"])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_pieces_join_to_the_decoding_of_all_ids(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.size + 3), max_size=30))
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=20))
def test_no_piece_of_valid_text_holds_a_replacement_character(text: str) -> None:
    ids = BYTE_LEVEL.encode(text)
    pieces = stream(BYTE_LEVEL, ids)
    assert "".join(pieces) == text
    assert sum(piece.count("�") for piece in pieces) == text.count("�")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 289), max_size=30))
def test_what_was_shown_never_changes(ids: list[int]) -> None:
    shown = ""
    for count, piece in enumerate(stream(BYTE_LEVEL, ids)[:-1], start=1):
        shown += piece
        assert BYTE_LEVEL.decode(ids[:count]).startswith(shown)


def test_a_character_appears_with_its_last_byte() -> None:
    ids = [BYTE_FALLBACK.find_id(f"<0x{byte:02X}>") or 0 for byte in "🦊".encode()]
    a = BYTE_FALLBACK.find_id("a") or 0
    assert stream(BYTE_FALLBACK, [*ids, a]) == ["", "", "", "", "🦊a", ""]
    fox = BYTE_LEVEL.encode("🦊")
    assert stream(BYTE_LEVEL, fox) == [""] * (len(fox) - 1) + ["🦊", ""]


def test_an_unfinished_character_is_replaced_at_the_end_only() -> None:
    fox = BYTE_LEVEL.encode("🦊")
    assert stream(BYTE_LEVEL, fox[:-1]) == [""] * (len(fox) - 1) + ["�"]


def test_special_tokens_show_nothing() -> None:
    assert "".join(stream(BYTE_LEVEL, [1, *BYTE_LEVEL.encode("a b"), 2, 0])) == "a b"


def test_spaces_between_words_survive_the_window() -> None:
    words = ["▁once", "▁upon", "a", "▁time", "▁b"] * 6
    ids = [BYTE_FALLBACK.find_id(word) or 0 for word in words]
    assert "".join(stream(BYTE_FALLBACK, ids)) == "once upona time b" + " once upona time b" * 5
