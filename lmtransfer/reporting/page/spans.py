"""The predicted and the gold answer in their passage, as pieces of text with marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Marked = Literal["", "gold", "pred", "both", "gap"]

#: Characters of the passage that are shown before and after an answer.
AROUND = 160


@dataclass(frozen=True, slots=True)
class Span:
    """Characters ``start`` to ``stop`` (exclusive) of a passage."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a passage.

    Attributes:
        text: the text; empty for a gap.
        kind: "" for plain text, "gold", "pred", "both" where the answers overlap, "gap" where text is left out.
    """

    text: str
    kind: Marked


def find_span(passage: str, answer: str, *, start: int | None, near: int | None = None) -> Span | None:
    """The place of an answer in its passage; None if it is not there.

    Args:
        passage: the passage.
        answer: text of the answer; a cut answer is found by its beginning.
        start: its first character, if it is known.
        near: otherwise, the occurrence that starts nearest to this character is taken; None: the first one.
    """
    if not answer:
        return None
    if start is not None and passage.startswith(answer, start):
        return Span(start, start + len(answer))
    places = []
    place = passage.find(answer)
    while place >= 0:
        places.append(place)
        place = passage.find(answer, place + 1)
    if not places:
        return None
    best = places[0] if near is None else min(places, key=lambda place: abs(place - near))
    return Span(best, best + len(answer))


def excerpt(passage: str, *, gold: Span | None, predicted: Span | None, around: int = AROUND) -> list[Piece]:
    """The parts of a passage around both answers, with the answers marked.

    Without any answer it is the beginning of the passage.

    Args:
        passage: the passage.
        gold: place of the gold answer.
        predicted: place of the predicted answer.
        around: characters that are shown before and after an answer, at most; the rest is left out.
    """
    spans = [span for span in (gold, predicted) if span is not None]
    shown = _windows(passage, spans or [Span(0, 0)], around)
    edges = sorted({edge for span in (*spans, *shown) for edge in (span.start, span.stop)})
    pieces: list[Piece] = []
    for window in shown:
        if window.start > 0:
            pieces.append(Piece("", "gap"))
        own = [edge for edge in edges if window.start <= edge <= window.stop]
        pieces += [
            Piece(passage[start:stop], _kind(start, stop, gold, predicted))
            for start, stop in zip(own, own[1:], strict=False)
        ]
    if shown[-1].stop < len(passage):
        pieces.append(Piece("", "gap"))
    return pieces


def _windows(passage: str, spans: Sequence[Span], around: int) -> list[Span]:
    """The shown parts, in order and apart from each other; they begin and end between words, if there is a space."""
    merged: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        start, stop = max(0, span.start - around), min(len(passage), span.stop + around)
        if start > 0:
            start = 1 + passage.rfind(" ", start - 1, start) or 1 + passage.find(" ", start, span.start) or start
        if stop < len(passage):
            place = passage.rfind(" ", span.stop, stop + 1)
            stop = stop if place < 0 else place
        if merged and start <= merged[-1].stop:
            merged[-1] = Span(merged[-1].start, max(stop, merged[-1].stop))
        else:
            merged.append(Span(start, stop))
    return merged


def _kind(start: int, stop: int, gold: Span | None, predicted: Span | None) -> Marked:
    inside = [span is not None and span.start <= start and stop <= span.stop for span in (gold, predicted)]
    if all(inside):
        return "both"
    return "gold" if inside[0] else "pred" if inside[1] else ""
