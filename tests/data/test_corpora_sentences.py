from __future__ import annotations

import random
import re
import time

import numpy as np
import pytest

from lmtransfer.data.corpora.sentences import _CANDIDATE, _CLOSERS, _MARKS, MAX_CHARACTERS, sentence_spans


def sentences(text: str) -> list[str]:
    return [text[start:stop].strip() for start, stop in sentence_spans(text)]


@pytest.mark.parametrize(
    "expected",
    [
        ["He left.", "She stayed!", "Did they?", "Yes."],
        ["Dr. Smith met J. R. R. Tolkien and Mrs. Jones vs. the rest.", "All went well."],
        ["It cost 3.5 million on Jan. 5 at 4 p.m. sharp.", "Then it rose."],
        ["See Fig. 3 and No. 7 of vol. 2.", "He said no.", "Then he left."],
        ["The U.S. Army came, e.g. from Ohio, i.e. the north.", "It was late."],
        ['"Stop!" he said.', '"No."', "(She ran.)", "[They did not.]", "\u201cNever.\u201d", "End."],
        ["He waited... and waited.", "Then\u2026 nothing."],
        ["What?!", "You and I.", "We two."],
        ["1. Introduction is first.", "The rest follows."],
        ["In 1999.", "42 people came."],
        ["Er wohnt z. B. in Berlin.", "\u201eJa.\u201c", "Das ist gut."],
        ["\u00ab Oui. \u00bb", "M. Dupont est l\u00e0.", "\u00bfQu\u00e9 tal?", "\u00a1Bien!"],
        ["\u0928\u092e\u0938\u094d\u0924\u0947\u0964", "\u0920\u0940\u0915\u0964"],
        ["\u0643\u064a\u0641\u061f", "\u062c\u064a\u062f."],
    ],
)
def test_sentences_are_found(expected: list[str]) -> None:
    assert sentences(" ".join(expected)) == expected


def test_full_width_marks_need_no_space() -> None:
    assert sentences("\u4f60\u597d\u3002\u6211\u5f88\u597d\uff1f\u662f\u7684\uff01") == [
        "\u4f60\u597d\u3002",
        "\u6211\u5f88\u597d\uff1f",
        "\u662f\u7684\uff01",
    ]


def test_a_line_end_is_a_boundary() -> None:
    assert sentences("A heading\nwith a second line\n\n  and a third. Then one") == [
        "A heading",
        "with a second line",
        "and a third.",
        "Then one",
    ]


def test_degenerate_texts() -> None:
    assert sentence_spans("") == []
    assert sentence_spans(" \n ") == [(0, 3)]
    assert sentence_spans("...") == [(0, 3)]
    assert sentence_spans("\n\nA.\n") == [(0, 5)]


@pytest.mark.parametrize("seed", range(5))
def test_spans_cover_any_text_exactly_and_none_is_blank(seed: int) -> None:
    rng = np.random.default_rng(seed)
    alphabet = list(
        "abAB12 .!?\n\t\"')( ,;:\u2026\u201d\u00ab\u00bb\u3002\uff01\u300d\u0964\u00e9\u4e2d\U0001f600\u00a0\u200b-Dr"
    )
    for _ in range(200):
        text = "".join(rng.choice(alphabet, int(rng.integers(1, 80))))
        spans = sentence_spans(text)
        assert spans[0][0] == 0
        assert spans[-1][1] == len(text)
        assert all(before[1] == after[0] for before, after in zip(spans, spans[1:], strict=False))
        if text.strip():
            assert all(text[start:stop].strip() for start, stop in spans)


@pytest.mark.parametrize("filler", ["word ", "x", "\u4e2d"])
def test_a_line_of_megabytes_is_cut(filler: str) -> None:
    text = filler * (2_000_000 // len(filler))
    spans = sentence_spans(text)
    assert max(stop - start for start, stop in spans) <= MAX_CHARACTERS
    assert "".join(text[start:stop] for start, stop in spans) == text
    if filler == "word ":
        assert all(text[stop - 1] == " " for _, stop in spans)


@pytest.mark.parametrize("long", ["a" + " " * 100_000 + "b", "a " + "." * 100_000 + "b", "a" + ". " * 50_000 + "b"])
def test_long_runs_take_time_by_their_length(long: str) -> None:
    start_time = time.process_time()
    spans = sentence_spans(long)
    assert time.process_time() - start_time < 5  # in quadratic time, this would take minutes
    assert "".join(long[start:end] for start, end in spans) == long


def test_candidates_are_those_of_a_plain_expression() -> None:
    """The fast expression finds what the alternatives find, tried at each character."""
    plain = re.compile(
        rf"\n\s*|[{_MARKS}]+[{_CLOSERS}]*(?:[^\S\n]\u00bb)?\s+"
        r"|[\u3002\uff01\uff1f\uff61]+[\u300d\u300f\u201d\u2019\uff09\u3011]*\s*"
    )
    rng = random.Random(0)
    for _ in range(5_000):
        text = "".join(rng.choice("ab..!?\u2026\u3002 \t\n\"')\u00bb\u201d") for _ in range(rng.randrange(1, 16)))
        found, expected = ([match.span() for match in c.finditer(text)] for c in (_CANDIDATE, plain))
        assert found == expected, repr(text)
