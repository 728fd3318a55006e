"""Answers in their passage: found at the right place, cut around, and joined again to the passage."""

from __future__ import annotations

import random

import pytest

from lmtransfer.reporting.page.run_answers import Piece, Span, excerpt, find_span

PASSAGE = "a red boat and a blue boat and a green boat"


@pytest.mark.parametrize(
    ("answer", "start", "near", "expected"),
    [
        ("boat", None, None, 6),
        ("boat", 22, None, 22),
        ("boat", None, 40, 39),
        ("boat", 1, 25, 22),  # the stated place is wrong
        ("sea", None, None, None),
        ("", 3, None, None),
    ],
)
def test_an_answer_is_found(answer: str, start: int | None, near: int | None, expected: int | None) -> None:
    found = find_span(PASSAGE, answer, start=start, near=near)
    assert found == (None if expected is None else Span(expected, expected + len(answer)))


def test_marks_are_at_the_characters_of_the_spans() -> None:
    """Character by character, for random spans and widths."""
    rng = random.Random(0)
    passage = " ".join(f"w{number}" for number in range(100))
    for _ in range(300):
        spans = [None if rng.random() < 0.2 else _random_span(rng, len(passage)) for _ in range(2)]
        around = rng.randrange(20, 80)
        kinds: dict[int, str] = {}
        for window in _windows(excerpt(passage, gold=spans[0], predicted=spans[1], around=around)):
            text = "".join(piece.text for piece in window)
            assert passage.count(text) == 1
            place = passage.index(text)
            assert place == 0 or passage[place - 1] == " "
            assert place + len(text) in (passage.find(" ", place + len(text)), len(passage))
            kinds |= dict(enumerate([piece.kind for piece in window for _ in piece.text], place))
        places = [span for span in spans if span is not None] or [Span(0, 0)]
        for place in range(len(passage)):
            distance = min(max(span.start - place, place - span.stop + 1, 0) for span in places)
            if distance <= around - 5:  # a word has at most three letters
                assert place in kinds
            if distance > around:
                assert place not in kinds
        for place, kind in kinds.items():
            inside = [span is not None and span.start <= place < span.stop for span in spans]
            assert kind == ("both" if all(inside) else "gold" if inside[0] else "pred" if inside[1] else "")


def test_gaps_stand_where_text_is_left_out() -> None:
    passage = "x" * 1000
    pieces = excerpt(passage, gold=Span(100, 110), predicted=Span(800, 810), around=20)
    assert [piece.kind for piece in pieces] == ["gap", "", "gold", "", "gap", "", "pred", "", "gap"]
    assert [len(piece.text) for piece in pieces] == [0, 20, 10, 20, 0, 20, 10, 20, 0]
    assert [piece.kind for piece in excerpt("short", gold=None, predicted=None)] == [""]


def _windows(pieces: list[Piece]) -> list[list[Piece]]:
    """The pieces between the gaps."""
    windows: list[list[Piece]] = [[]]
    for piece in pieces:
        assert bool(piece.text) == (piece.kind != "gap")
        if piece.kind == "gap":
            windows.append([])
        else:
            windows[-1].append(piece)
    return [window for window in windows if window]


def _random_span(rng: random.Random, length: int) -> Span:
    start = rng.randrange(length)
    return Span(start, rng.randrange(start + 1, min(length, start + 40) + 1))
