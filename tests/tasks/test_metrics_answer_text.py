"""Normalisation, exact match and word F1: worked by hand, and against a slow computation that shares nothing."""

from __future__ import annotations

import random
import string
from fractions import Fraction

import pytest
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.metrics.question_answering import (
    check_same_questions,
    exact_match,
    leave_one_out_max,
    normalize_answer,
    token_f1,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Denver\tBroncos ", "denver broncos"),
        ("A.B.C.", "abc"),
        ("well-known", "wellknown"),
        ("an apple, a pear and the Theatre", "apple pear and theatre"),
        ("the, a. AN!", ""),
        ("", ""),
        ("$3,000.50", "300050"),
        ("Gda\u0144sk\u00a0\u2013 \u00c9cole", "gda\u0144sk \u2013 \u00e9cole"),  # no-break space; a dash is not ASCII
        ("\u201cthe end\u201d", "\u201c end\u201d"),
        ("\u00e0 la carte", "\u00e0 la carte"),
        ("the\u2019s", "\u2019s"),  # a typographic apostrophe ends a word, so an article goes
        ("a's", "as"),  # an ASCII one does not
        ("\u4e2d\u6587 a\u4e2d", "\u4e2d\u6587 a\u4e2d"),
        ("\u0130", "i\u0307"),
    ],
)
def test_normalized_texts(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


def _slow_normalize(text: str) -> str:
    """Letter by letter: runs of letters and digits that are articles become a space."""
    kept = [letter for letter in text.lower() if letter not in string.punctuation]
    parts: list[str] = []
    run = ""
    for letter in [*kept, " "]:
        if letter.isalnum():
            run += letter
            continue
        parts += [" " if run in ("a", "an", "the") else run, letter]
        run = ""
    return " ".join("".join(parts).split())


def _slow_f1(answer: str, reference: str) -> Fraction:
    """Each word of the answer takes away one equal word of the reference."""
    answered, left = _slow_normalize(answer).split(), _slow_normalize(reference).split()
    words, common = len(answered) + len(left), 0
    for word in answered:
        if word in left:
            left.remove(word)
            common += 1
    return Fraction(2 * common, words) if words else Fraction(1)


def test_random_texts_agree_with_the_slow_computation() -> None:
    draw = random.Random(0)
    pieces = ["a", "an", "the", "The", "cat", "x", "\u00e9", "7", ".", "-", "'", "\u2019", " ", " ", "\u00a0", "\n"]
    texts = ["".join(draw.choices(pieces, k=draw.randint(0, 12))) for _ in range(400)]
    for answer, reference in zip(texts, texts[1:], strict=False):
        assert normalize_answer(answer) == _slow_normalize(answer)
        assert exact_match(answer, reference) == float(_slow_normalize(answer) == _slow_normalize(reference))
        assert token_f1(answer, reference) == pytest.approx(float(_slow_f1(answer, reference)), abs=1e-15)
        assert token_f1(answer, reference) == token_f1(reference, answer)


def test_words_count_as_often_as_both_have_them() -> None:
    assert token_f1("la la land", "La La La!") == pytest.approx(2 / 3)
    assert token_f1("New York City", "York") == pytest.approx(0.5)
    assert token_f1("York new", "New York") == 1.0
    assert exact_match("York new", "New York") == 0.0


def test_texts_without_a_word_left() -> None:
    assert exact_match("the", "") == 1.0
    assert token_f1("the", "...") == 1.0
    assert token_f1("the", "...", empty_agree=False) == 0.0
    assert token_f1("", "word") == token_f1("word", "the") == 0.0


def test_one_reference_is_left_out_in_turn() -> None:
    assert leave_one_out_max([0.25]) == 0.25
    assert leave_one_out_max([0.5, 1.0]) == 0.75
    assert leave_one_out_max([0.0, 1.0, 0.5]) == pytest.approx((1 + 0.5 + 1) / 3)
    assert leave_one_out_max([1.0, 0.0, 1.0]) == 1.0
    with refuses(ValueError, "reference"):
        leave_one_out_max([])


def test_questions_and_answers_have_to_match() -> None:
    check_same_questions({"q1": ""}, ["q1"])
    with refuses(DataError, "2 of 3", "answer", "'q1'"):
        check_same_questions({"q2": "x"}, ["q1", "q2", "q3"])
    with refuses(DataError, "1 of 2", "ids", "'q9'"):
        check_same_questions({"q1": "x", "q9": "x"}, ["q1"])
    with refuses(DataError, "question"):
        check_same_questions({}, [])
