"""Answers over windows against an enumeration of every span of every window."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from fakes.heads import table

from lmtransfer.tasks.answers import SpanAnswer
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.qa.example import QuestionExample
from lmtransfer.tasks.qa.task import NO_SPAN_SCORE, decode_spans
from lmtransfer.tasks.qa.windows import encode_questions
from lmtransfer.tokenizers.words import WordTokenizer

WORDS = ["ann", "bob", "ran", "to", "the", "sea", "and", "back", "in", "two", "days"]
LONGEST = 4
KINDS = ("yes", "no")


def encode(passages: list[str], max_length: int = 14) -> EncodedExamples:
    examples = [QuestionExample(f"q{i}", "ann ran", passage) for i, passage in enumerate(passages)]
    return encode_questions(
        examples, WordTokenizer(WORDS, lowercase=True), max_length=max_length, num_segments=2, stride=3
    )


def random_passages(rng: np.random.Generator) -> list[str]:
    return ["  ".join(rng.choice(WORDS, rng.integers(1, 30))) for _ in range(6)]


def best_of_window(starts: np.ndarray, ends: np.ndarray, first: int, stop: int) -> tuple[int, int, float]:
    """What a head gives of a window: its best legal span."""
    legal = [(i, j) for i in range(first, stop) for j in range(i, min(i + LONGEST, stop))]
    start, end = max(legal, key=lambda span: starts[span[0]] + ends[span[1]])
    return start, end, float(starts[start] + ends[end])


@pytest.mark.parametrize("seed", range(15))
def test_the_answer_is_the_best_span_of_all_windows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    encoded = encode(random_passages(rng))
    # Quarters, so that float32 sums are exact.
    logits = [rng.integers(-40, 40, (2, length)) / 4 for length in encoded.lengths]
    outputs = np.zeros((len(encoded), 4), dtype=np.float32)
    for sequence, (starts, ends) in enumerate(logits):
        first, stop = table(encoded.targets)[sequence, 3:]
        outputs[sequence, :3] = best_of_window(starts, ends, first, stop)
        outputs[sequence, 3] = starts[0] + ends[0]
    threshold = float(rng.integers(-8, 8)) / 4
    answers = list(decode_spans(encoded, outputs, labels=(), no_answer=True, threshold=threshold))
    assert len(answers) == len(encoded.examples)
    for number, (example, answer) in enumerate(zip(encoded.examples, answers, strict=True)):
        every: list[tuple[float, str]] = []
        nulls = []
        for sequence in np.flatnonzero(encoded.owners == number):
            starts, ends = logits[sequence]
            tokens = encoded.tokens_T[encoded.offsets[sequence] : encoded.offsets[sequence + 1]]
            first = tokens.tolist().index(2) + 1
            for i in range(first, len(tokens) - 1):
                for j in range(i, min(i + LONGEST, len(tokens) - 1)):
                    text = "  ".join(WORDS[token - 4] for token in tokens[i : j + 1])
                    every.append((float(starts[i] + ends[j]), text))
            nulls.append(float(starts[0] + ends[0]))
        score = max(every)[0]
        assert answer.score == score
        assert answer.null_score == min(nulls)
        assert (score, answer.best) in every
        if min(nulls) - score > threshold:
            assert (answer.text, answer.start, answer.end) == ("", None, None)
        else:
            assert answer.text == answer.best == example.passage[answer.start : answer.end]
    spans = decode_spans(encoded, outputs, labels=(), no_answer=False, threshold=threshold)
    assert [answer.text for answer in spans] == [answer.best for answer in answers]


def turned(encoded: EncodedExamples, outputs: np.ndarray) -> tuple[EncodedExamples, np.ndarray]:
    """The same with the windows of each example in the opposite order."""
    order = np.concatenate([np.flatnonzero(encoded.owners == i)[::-1] for i in range(len(encoded.examples))])
    examples = tuple(replace(example, window_starts=example.window_starts[::-1]) for example in encoded.examples)
    targets = encoded.targets.each(lambda values: values[order])
    return replace(encoded, examples=examples, targets=targets), outputs[order]


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_windows_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    encoded = encode(random_passages(rng))
    outputs = np.zeros((len(encoded), 6), dtype=np.float32)
    for sequence, (first, stop) in enumerate(table(encoded.targets)[:, 3:]):
        start, end = np.sort(rng.integers(first, stop, 2))
        outputs[sequence] = [
            start,
            end,
            rng.integers(0, 2),
            rng.integers(0, 3),
            *rng.integers(-3, 2, 2),
        ]  # many are equal
    for no_answer in (True, False):
        answers = [
            list(decode_spans(*given, labels=KINDS, no_answer=no_answer))
            for given in ((encoded, outputs), turned(encoded, outputs))
        ]
        assert answers[0] == answers[1]


def test_of_equal_spans_the_first_and_shortest_is_the_answer() -> None:
    encoded = encode(["ann  bob ran to the sea and back in two days"])
    assert len(encoded) > 1
    outputs = np.array([[5, 7, 1.0, 0.0]] * len(encoded), dtype=np.float32)
    assert next(decode_spans(encoded, outputs, labels=(), no_answer=False)).text == "bob ran to"
    outputs = np.array([[4, 4 + (i == 0), 1.0, 0.0] for i in range(len(encoded))], dtype=np.float32)
    assert next(decode_spans(encoded, outputs, labels=(), no_answer=False)).text == "ann  bob"


def test_another_kind_is_answered_where_a_window_has_it_above_a_span() -> None:
    encoded = encode(["ann bob", "ann bob", "ann bob"])
    outputs = np.array(
        [[4, 4, 9, 0, -1, -2], [4, 4, 9, 0, 1, 2], [4, 4, 0, 9, 1, -2]],
        dtype=np.float32,
    )
    answers = list(decode_spans(encoded, outputs, labels=KINDS, no_answer=True))
    assert [(answer.text, answer.kind, answer.start) for answer in answers] == [
        ("ann", None, 0),
        ("no", "no", None),
        ("yes", "yes", None),
    ]
    assert [answer.best for answer in answers] == ["ann"] * 3


def test_offsets_are_those_of_the_original_passage() -> None:
    passage = "  Ann\u00a0 RAN,to\nthe  Sea! "
    encoded = encode([passage], 64)
    outputs = np.array([[5, 9, 1, 0]], dtype=np.float32)
    answer = next(decode_spans(encoded, outputs, labels=(), no_answer=False))
    assert answer.text == passage[answer.start : answer.end] == "RAN,to\nthe  Sea"
    assert answer.plain()["start"] == passage.index("RAN")


@pytest.mark.parametrize("row", [[-1, -1, 0, 0], [3, 4, 9, 0], [4, 6, 9, 0], [5, 4, 9, 0], [4, 4, -np.inf, 0]])
def test_no_legal_span_is_an_empty_answer(row: list[float]) -> None:
    encoded = encode(["ann bob"])
    answer = next(decode_spans(encoded, np.array([row], dtype=np.float32), labels=(), no_answer=False))
    assert answer == SpanAnswer("", score=NO_SPAN_SCORE)
    assert json.loads(json.dumps(answer.plain(), allow_nan=False))["answer"] == ""
