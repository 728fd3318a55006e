"""CoQA's files, and the span that is closest to a free-form answer."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.file_formats.coqa import closest_span, read_coqa
from lmtransfer.tasks.metrics.question_answering import token_f1
from lmtransfer.tasks.qa.example import GoldSpan, Turn

STORY = "Ann's brown-haired cat, Tom, was 3 years old. \nHe slept in the barn. Was he happy? Yes, very."


def answer(turn: int, text: str, evidence: str | None) -> dict[str, Any]:
    start = -1 if evidence is None else STORY.index(evidence)
    end = -1 if evidence is None else start + len(evidence)
    span = {"span_start": start, "span_end": end, "span_text": "unknown" if evidence is None else evidence}
    return {"turn_id": turn, "input_text": text, **span}


def conversation(*answers: dict[str, Any], additional: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    questions = [{"turn_id": number, "input_text": f"What {number}?"} for number in range(1, len(answers) + 1)]
    others = {} if additional is None else {"additional_answers": additional}
    names = {"source": "mctest", "id": "s1", "filename": "a.txt", "name": "a.txt", "story": STORY}
    return {**names, "questions": questions, "answers": list(answers), **others, **changes}


def written(folder: Path, *conversations: dict[str, Any]) -> Path:
    path = folder / "coqa-dev-v1.0.json"
    path.write_text(json.dumps({"version": "1.0", "data": list(conversations)}))
    return path


def quoted(gold: GoldSpan) -> str | None:
    return None if gold.start is None else STORY[gold.start : gold.end]


def test_free_answers_other_kinds_and_history(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        conversation(
            {**answer(1, "It was brown", "Ann's brown-haired cat"), "span_text": " Ann's  brown-haired cat"},
            answer(2, "Three", "was 3 years old. \n"),
            answer(3, "Yes.", "Yes, very."),
            answer(4, "unknown", None),
            answer(5, "no", None),
        ),
    )
    read = read_coqa(path, bad_answers="refuse", kinds=("yes", "no", "unknown"))
    gold_answers = [example.answers or () for example in read.examples]
    assert [example.id for example in read.examples] == ["s1:1", "s1:2", "s1:3", "s1:4", "s1:5"]
    assert [[(gold.text, quoted(gold)) for gold in each] for each in gold_answers] == [
        [("It was brown", "brown")],
        [("Three", "was 3 years old.")],
        [("Yes.", "Yes, very.")],
        [("unknown", None)],
        [("no", None)],
    ]
    assert [example.kind for example in read.examples] == [None, None, 0, 2, 1]
    assert read.examples[2].history == (Turn("What 1?", "It was brown"), Turn("What 2?", "Three"))
    assert read.examples[0].metadata == (("source", "mctest"),)
    other_order = read_coqa(path, kinds=("unknown", "no", "yes"))
    assert [example.kind for example in other_order.examples] == [None, None, 2, 0, 1]


def test_additional_answers_follow_in_order(tmp_path: Path) -> None:
    additional = {
        "0": [answer(1, "Tom the cat", "brown-haired cat, Tom")],
        "1": [answer(1, "yes", "Yes, very.")],
        "2": [answer(1, "unknown", None)],
    }
    read = read_coqa(written(tmp_path, conversation(answer(1, "Tom", "cat, Tom, was"), additional=additional)))
    gold_answers = read.examples[0].answers or ()
    assert [gold.text for gold in gold_answers] == ["Tom", "Tom the cat", "yes", "unknown"]
    assert [quoted(gold) for gold in gold_answers] == ["Tom", "cat, Tom", None, None]
    assert read.examples[0].kind is None


def test_hidden_answers(tmp_path: Path) -> None:
    hidden = conversation(answer(1, "", None), answer(2, "", None))
    del hidden["answers"]
    read = read_coqa(written(tmp_path, hidden))
    assert [(example.answers, example.kind) for example in read.examples] == [(None, None)] * 2
    assert read.examples[1].history == (Turn("What 1?", ""),)


def test_evidence_that_is_elsewhere_is_refused_or_set_aside(tmp_path: Path) -> None:
    moved = {"span_start": 2, "span_end": 5}
    path = written(
        tmp_path,
        conversation(
            {**answer(1, "Tom", "Tom"), **moved},
            {**answer(2, "Tom", "Tom"), **moved},
            {**answer(3, "yes", "Yes, very."), **moved},
            answer(4, "a cat", None),
            answer(5, " ", "cat"),
            additional={
                "0": [
                    answer(1, "cat", "cat"),
                    answer(2, "yes", "Yes"),
                    answer(3, "no", None),
                    answer(4, "the cat", "cat"),
                    answer(5, "yes", "Yes"),
                ]
            },
        ),
    )
    with refuses(DataError, str(path), "5 of 10", "s1:1", "span_start=2", "span_end=5", "2 more"):
        read_coqa(path, bad_answers="refuse")

    read = read_coqa(path, bad_answers="skip")
    gold_answers = {
        example.id: [(gold.text, quoted(gold)) for gold in example.answers or ()] for example in read.examples
    }
    assert gold_answers == {
        "s1:1": [("cat", "cat"), ("Tom", None)],
        "s1:3": [("yes", None), ("no", None)],
        "s1:4": [("the cat", "cat"), ("a cat", None)],
    }
    assert read.bad_answers == ("s1:1", "s1:2", "s1:3", "s1:4", "s1:5")
    assert read.skipped_questions == ("s1:2", "s1:5")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"answers": []}, ("data[0].answers", "turn_id 1")),
        ({"answers": [answer(2, "Tom", "Tom")]}, ("data[0].answers", "turn_id 1", " 2")),
        ({"additional_answers": {"0": []}}, ("data[0].additional_answers.0", "turn_id 1")),
        ({"additional_answers": []}, ("data[0].additional_answers", "object", "[]")),
        ({"questions": [{"turn_id": 1, "input_text": " "}]}, ("data[0].questions[0].input_text", "s1:1", "empty")),
        (
            {"questions": [{"turn_id": 1, "input_text": "A?"}] * 2, "answers": [answer(1, "Tom", "Tom")] * 2},
            ("data[0].questions[1]", "data[0].questions[0]", "s1:1"),
        ),
        (
            {"answers": [{**answer(1, "Tom", "Tom"), "span_end": None}]},
            ("data[0].answers[0].span_end", "s1:1", "number", "null"),
        ),
        ({"story": ""}, ("data[0].story", "empty")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_is_malformed_is_named(tmp_path: Path, changes: dict[str, Any], names: tuple[str, ...]) -> None:
    path = written(tmp_path, conversation(answer(1, "Tom", "Tom"), **changes))
    with refuses(DataError, str(path), *names):
        read_coqa(path, bad_answers="skip")


@pytest.mark.parametrize(
    ("text", "said", "expected"),
    [
        ("It is Bob's bike", "Bob", "Bob"),
        ('the "U.S." army', "US army", 'U.S." army'),
        ("red or blue or red blue", "red and blue", "red blue"),
        ("one two", "the", None),
        ("cat cat", "The cat!", "cat"),
    ],
)
def test_closest_span(text: str, said: str, expected: str | None) -> None:
    found = closest_span(text, said)
    assert (None if found is None else text[slice(*found)]) == expected


def test_no_span_is_closer() -> None:
    # Compare every span between two edges by the metric itself.
    source = random.Random(0)
    pieces = ["a", "the", "x", "y", "X.", "y-x", "x'y", "-", '"x', "z,", "\u201cx\u201d", "y\u2013the\u2013z", "w"]
    for _ in range(300):
        text = "".join(
            source.choice(pieces) + source.choice([" ", " ", "  ", "\n"]) for _ in range(source.randrange(9))
        )
        said = " ".join(source.choice(pieces) for _ in range(source.randrange(5)))
        edges = [match for pattern in (r"\S+", r"[^\W_]+") for match in re.finditer(pattern, text)]
        starts, ends = [match.start() for match in edges], [match.end() for match in edges]
        spans = [(start, end) for start in starts for end in ends if start < end]
        scored = [(token_f1(text[start:end], said, empty_agree=False), start - end, -start) for start, end in spans]
        best = max(scored, default=(0.0, 0, 0))
        expected = None if best[0] == 0 else (-best[2], -best[2] - best[1])
        assert closest_span(text, said) == expected, (text, said)


def test_long_evidence() -> None:
    text = "he saw it " * 5_000 + "and the very old ship sank. " + "he saw it " * 5_000
    found = closest_span(text, "He said the very old ship sank")
    # including the "he" that follows: 2 * 5 / (5 + 6) is more than 2 * 4 / (4 + 6).
    assert found is not None
    assert text[slice(*found)] == "very old ship sank. he"
    assert closest_span("x-" * 50_000 + " word", "word") == (100_001, 100_005)
