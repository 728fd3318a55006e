"""Evidence of words by leave-one-out, against scores that the test computes by itself."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.refusals import refuses

from lmtransfer.inference.serving import evidence
from lmtransfer.inference.serving.evidence import TooLong, leave_one_out, words_of
from lmtransfer.tasks.text.example import TextExample

WEIGHTS = {"good": 2.0, "not": -3.0, "film,": 0.5, "bad": -1.0}


class InThrees:
    """Each token has three characters; an empty one follows each token, as some normalisations make."""

    def encode(self, text: str) -> Any:
        starts = range(0, len(text), 3)
        spans = [span for start in starts for span in ((start, min(start + 3, len(text))), (start, start))]
        return SimpleNamespace(offsets=np.array(spans))


TOKENIZER: Any = InThrees()


def score(examples: Sequence[TextExample]) -> list[float]:
    """The weights of the words of both texts; the second text counts double."""

    def of(text: str | None) -> float:
        return sum(WEIGHTS.get(word, 0.0) for word in (text or "").split())

    return [of(example.text) + 2 * of(example.text_pair) for example in examples]


def test_the_effect_of_a_word_is_the_score_without_it() -> None:
    example = TextExample("a", "  not a good\nfilm, not bad ", "good good")
    found = leave_one_out(example, score, TOKENIZER, is_over=lambda: False)
    assert [(one.field, one.word, one.effect) for one in found] == [
        ("text", "not", -3.0),
        ("text", "a", 0.0),
        ("text", "good", 2.0),
        ("text", "film,", 0.5),
        ("text", "not", -3.0),
        ("text", "bad", -1.0),
        ("text_pair", "good", 4.0),
        ("text_pair", "good", 4.0),
    ]
    assert all(getattr(example, one.field)[one.start : one.end] == one.word for one in found)


def test_more_words_than_are_answered_together() -> None:
    text = " ".join(f"w{number}" for number in range(100))
    places = {text.replace(f"w{number} ", " ", 1): number for number in range(99)}

    def by_place(examples: Sequence[TextExample]) -> list[float]:
        return [-float(places.get(example.text, 0)) for example in examples]

    found = leave_one_out(TextExample("a", text), by_place, TOKENIZER, is_over=lambda: False)
    assert [one.effect for one in found[:99]] == list(range(99))


def test_text_without_spaces_is_cut_into_tokens() -> None:
    long = "x" * 28
    spans = list(words_of(f"ab {long} c", TOKENIZER))
    assert spans[0] == (0, 2)
    assert spans[1:-1] == [(start, min(start + 3, 31)) for start in range(3, 31, 3)]
    assert spans[-1] == (32, 33)
    assert list(words_of("x" * 24, TOKENIZER)) == [(0, 24)]


def test_long_texts_and_the_end_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "MOST_WORDS", 3)
    assert len(leave_one_out(TextExample("a", "a b", "c"), score, TOKENIZER, is_over=lambda: False)) == 3
    with refuses(TooLong, "4", "3"):
        leave_one_out(TextExample("a", "a b", "c d"), score, TOKENIZER, is_over=lambda: False)
    with refuses(TooLong, "0 of 2"):
        leave_one_out(TextExample("a", "a b"), score, TOKENIZER, is_over=lambda: True)


def test_a_text_without_words_has_no_evidence() -> None:
    assert leave_one_out(TextExample("a", " "), score, TOKENIZER, is_over=lambda: False) == ()
