"""Decode the outputs of a span head over the windows of a passage into one answer per example.

Shape legend: N examples, S sequences (the windows of all of them), C other kinds of answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lmtransfer.tasks.answers import SpanAnswer
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.qa.gold_tokens import text_of_tokens
from lmtransfer.tasks.qa.windows import WindowedQuestion
from lmtransfer.tasks.targets import SpanTargets

#: The score of a passage without any legal span: the lowest float32 value, because JSON has no infinity.
NO_SPAN_SCORE = float(np.finfo(np.float32).min)


def decode_spans(
    encoded: EncodedExamples, outputs: np.ndarray, *, labels: Sequence[str], no_answer: bool, threshold: float = 0.0
) -> Iterator[SpanAnswer]:
    """Yield one answer per example, independent of the number and the order of its windows.

    The span is the best of the windows' best spans (with equal scores, the first in the passage). The null score is the
    smallest of the windows' null scores, as in run_squad.py of google-research/bert for SQuAD 2.0: there is no answer
    only if every window says so. Another kind of answer is given if some window scores it above a span.

    Args:
        encoded: result of ``encode_questions``.
        outputs: [start, end, score, null score, and for each other kind its log odds against a span], float32, shape
            (S, 4 + C); start and end are tokens of the sequence, or -1 if no span is legal.
        labels: names of the C other kinds.
        no_answer: whether "no answer" is a valid answer.
        threshold: null odds (null score minus span score) above which there is no answer.
    """
    targets_of = SpanTargets.of(encoded.targets)
    passages = np.stack([targets_of.first, targets_of.stop], axis=1)
    edges = np.searchsorted(encoded.owners, np.arange(len(encoded.examples) + 1)).tolist()
    for question, first, last in zip(encoded.examples, edges[:-1], edges[1:], strict=True):
        rows = outputs[first:last]
        best = _best(question, passages[first:last], rows)
        null_score = float(rows[:, 3].min())
        text = question.passage[best.start : best.end]
        answer = SpanAnswer(text, best.start, best.end, best.score, null_score, best=text)
        odds = rows[:, 4:].max(axis=0)
        if len(odds) and odds.max() > 0:
            name = labels[int(odds.argmax())]
            answer = replace(answer, text=name, start=None, end=None, kind=name)
        elif best.score == NO_SPAN_SCORE or (no_answer and null_score - best.score > threshold):
            answer = replace(answer, text="", start=None, end=None)
        yield answer


class _Span(NamedTuple):
    """A span of characters that compares so that ``max`` takes the earlier of two spans with equal scores."""

    score: float
    earlier: tuple[int, int]

    @property
    def start(self) -> int:
        return -self.earlier[0]

    @property
    def end(self) -> int:
        return -self.earlier[1]


def _best(question: WindowedQuestion, passages: np.ndarray, rows: np.ndarray) -> _Span:
    """Return the best legal span over all windows, in characters of the passage."""
    found = [_Span(NO_SPAN_SCORE, (0, 0))]
    for begin, (first, stop), row in zip(question.window_starts, passages.tolist(), rows, strict=True):
        start, end, score = int(row[0]), int(row[1]), float(row[2])
        if first <= start <= end < stop and math.isfinite(score):
            where = text_of_tokens(question.passage, question.spans, begin + start - first, begin + end - first)
            found.append(_Span(score, (-where[0], -where[1])))
    return max(found)
