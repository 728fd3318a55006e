"""The predictions of each run in the report: confusions, worst errors, marked spans and tagged sentences.

Shape legend: N examples, C labels.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from lmtransfer.reporting.page.wrong_answers import (
    ExampleText,
    TextLookup,
    Texts,
    WrongAnswer,
    tagged_words,
    worst_label_sets,
    worst_labels,
    worst_scores,
    worst_sentences,
    worst_spans,
)
from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.reporting.runs.scores import read_answers
from lmtransfer.reporting.table import Cell, ReportTable, plain_table
from lmtransfer.runs.predictions import prediction_files
from lmtransfer.system.printable import printable
from lmtransfer.tasks.metrics.scored_examples import Predictions, mean_by_class, scores_by_class

#: Maximum number of labels in a confusion matrix; with more labels, the most confused pairs are listed instead.
MAX_LABELS = 20
#: Maximum number of confused pairs to list.
MAX_PAIRS = 15

Mark = Literal["", "gold", "pred", "both", "gap"]
#: Number of characters of a passage that are shown before and after an answer.
CONTEXT_CHARACTERS = 160
#: Maximum number of classes to show, those with the most gold examples.
MAX_CLASSES = 30
#: Maximum number of runs to show: the best run of each task, then the second best, and so on.
MAX_RUNS = 24
#: Maximum number of characters in a text; longer texts are truncated.
MAX_CHARACTERS = 600
_ON_TEST = "Answers to test examples are not shown, so that nobody chooses a model by looking at test data."


@dataclass(frozen=True, slots=True)
class Confusion:
    """The confusions of a run.

    Attributes:
        labels: the labels that are gold or predicted at least once, in the task's order.
        matrix: counts by gold label (rows) and predicted label; empty if there are more than ``MAX_LABELS`` labels.
        pairs: the most frequent confusions, most frequent first; None if there is a matrix.
    """

    unit: str
    num_answers: int
    num_seeds: int
    labels: tuple[str, ...]
    matrix: list[list[int]]
    pairs: ReportTable | None
    num_pairs: int


def confusion(answers: Sequence[Predictions]) -> Confusion | None:
    """Count the predictions of all seeds together; return None if they are not labels."""
    if not answers or answers[0].examples.kind not in ("classification", "tagging"):
        return None
    names = answers[0].examples.labels
    parts = [predictions.examples for predictions in answers]
    gold, predicted = (np.concatenate([getattr(part, what) for part in parts]) for what in ("gold", "predicted"))
    counts = Counter(zip(gold.tolist(), predicted.tolist(), strict=True))
    if not counts:
        return None
    labels = sorted({label for pair in counts for label in pair})
    unit = "words" if answers[0].examples.kind == "tagging" else "answers"
    pairs = None
    if len(labels) > MAX_LABELS:
        totals = Counter(gold.tolist())
        wrong = sorted((-count, pair) for pair, count in counts.items() if pair[0] != pair[1])
        rows = [
            (names[right], names[answer], f"{-count:,}", f"{-100 * count / totals[right]:.1f} %")
            for count, (right, answer) in wrong[:MAX_PAIRS]
        ]
        pairs = plain_table("Confused labels", ("gold", "answer", unit, "share of gold"), rows)
    return Confusion(
        unit=unit,
        num_answers=len(gold),
        num_seeds=len(answers),
        labels=tuple(names[label] for label in labels),
        matrix=[] if pairs else [[counts[right, answer] for answer in labels] for right in labels],
        pairs=pairs,
        num_pairs=sum(right != answer for right, answer in counts),
    )


@dataclass(frozen=True, slots=True)
class PassagePart:
    """A part of a passage.

    Attributes:
        kind: "" for plain text, "gold" or "pred" for an answer, "both" where the answers overlap, and "gap" for omitted
            text.
    """

    text: str
    kind: Mark


def find_span(passage: str, answer: str, *, start: int | None, near: int | None = None) -> range | None:
    """Return the character range of an answer in its passage; None if the answer does not occur.

    Args:
        answer: the text of the answer, or its beginning if it was truncated.
        start: the index of the answer's first character, if known.
        near: if ``start`` is unknown, the occurrence nearest to this index is returned; None for the first one.
    """
    if not answer:
        return None
    places = [match.start() for match in re.finditer(f"(?={re.escape(answer)})", passage)]
    if start not in places:
        start = min(places, key=lambda place: abs(place - (near or 0)), default=None)
    return None if start is None else range(start, start + len(answer))


def excerpt(
    passage: str, *, gold: range | None, predicted: range | None, around: int = CONTEXT_CHARACTERS
) -> list[PassagePart]:
    """Return the parts of a passage around both answers, with the answers marked.

    If there are no answers, return the beginning of the passage.

    Args:
        around: the maximum number of characters before and after an answer.
    """
    spans = [span for span in (gold, predicted) if span is not None]
    windows = _windows(passage, spans or [range(0)], around)
    pieces: list[PassagePart] = []
    for window in windows:
        if window.start > 0:
            pieces.append(PassagePart("", "gap"))
        for kind, places in itertools.groupby(window, key=lambda place: _kind(place, gold, predicted)):
            pieces.append(PassagePart("".join(passage[place] for place in places), kind))
    if windows[-1].stop < len(passage):
        pieces.append(PassagePart("", "gap"))
    return pieces


def _windows(passage: str, spans: Sequence[range], around: int) -> list[range]:
    """Return the disjoint parts to show, in order; they begin and end at word boundaries if possible."""
    merged: list[range] = []
    for span in sorted(spans, key=lambda span: span.start):
        start, stop = max(0, span.start - around), min(len(passage), span.stop + around)
        if start > 0:
            start = 1 + passage.rfind(" ", start - 1, start) or 1 + passage.find(" ", start, span.start) or start
        if stop < len(passage):
            place = passage.rfind(" ", span.stop, stop + 1)
            stop = stop if place < 0 else place
        if merged and start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(stop, merged[-1].stop))
        else:
            merged.append(range(start, stop))
    return merged


def _kind(place: int, gold: range | None, predicted: range | None) -> Mark:
    in_gold, in_predicted = (span is not None and place in span for span in (gold, predicted))
    if in_gold and in_predicted:
        return "both"
    return "gold" if in_gold else "pred" if in_predicted else ""


def answers_of(entry: Entry, problems: list[str]) -> list[Predictions]:
    """Return the predictions of a run's seeds on the scored split; empty if none were kept.

    Seeds whose examples or labels differ from those of the first seed are left out.
    """
    candidates = [
        predictions
        for predictions in read_answers(entry.run.path, problems)
        if predictions.split == entry.split and not predictions.baseline
    ]
    own = [predictions for predictions in candidates if not predictions.is_control]
    # The user may have named a control's folder as a run.
    return _select_comparable(own or (candidates if entry.is_control else []))


def _select_comparable(answers: Sequence[Predictions]) -> list[Predictions]:
    if not answers:
        return []
    first = answers[0].examples
    comparable = []
    order = np.argsort(first.keys, kind="stable")
    for predictions in answers:
        other = predictions.examples
        own = np.argsort(other.keys, kind="stable")
        if (other.kind, other.labels) == (first.kind, first.labels) and np.array_equal(
            other.keys[own], first.keys[order]
        ):
            other = other.select(own[np.argsort(order)])
            if np.array_equal(other.gold, first.gold) and np.array_equal(other.offsets, first.offsets):
                comparable.append(replace(predictions, examples=other))
    return comparable


def class_scores(answers: Sequence[Predictions]) -> ReportTable | None:
    """Tabulate precision, recall and F1 of each class, most frequent first; return None if there are no classes."""
    scores = mean_by_class([scores_by_class(predictions.examples) for predictions in answers]) if answers else {}
    if not scores:
        return None
    frequent = sorted(scores, key=lambda name: -scores[name]["support"])[:MAX_CLASSES]
    rows: list[list[str | Cell]] = [
        [
            name,
            *(Cell(f"{100 * scores[name][key]:.1f}", sort=scores[name][key]) for key in ("precision", "recall", "f1")),
            Cell(f"{scores[name]['support']:,.0f}", sort=scores[name]["support"]),
        ]
        for name in frequent
    ]
    seeds = f", the mean of {len(answers)} seeds" if len(answers) > 1 else ""
    more = f"; {len(scores) - len(rows)} more are in result.json" if len(scores) > len(rows) else ""
    headings = ("class", "precision", "recall", "F1", "gold answers")
    return plain_table("Scores by class", headings, rows, note=f"In percent{seeds}{more}.")


@dataclass(frozen=True, slots=True)
class RunAnswers:
    """The predictions of one run, as the template shows them."""

    name: str
    transfer: str
    group: str
    remarks: tuple[str, ...] = ()
    confusion: Confusion | None = None
    class_scores: ReportTable | None = None
    errors: Sequence[Mapping[str, Any]] = ()
    sentences: Sequence[Mapping[str, Any]] = ()
    num_seeds: int = 0


def all_answers(entries: Sequence[Entry], texts: Texts) -> tuple[list[RunAnswers], int]:
    """Collect the predictions of the best runs that kept them.

    Returns:
        The predictions, task by task, and the number of omitted runs.
    """
    with_answers = [
        entry
        for entry in entries
        if entry.score is not None
        and not entry.is_pretraining
        and entry.transfer != "zero-shot"
        and prediction_files(entry.run.path)
    ]
    ranks: dict[str, int] = {}
    ranked = []
    for entry in sorted(with_answers, key=attrgetter("order")):
        ranks[entry.group] = rank = ranks.get(entry.group, -1) + 1
        ranked.append((rank, entry.group, entry))
    best = sorted(ranked, key=lambda candidate: candidate[:2])[:MAX_RUNS]
    views = [
        run_answers(entry, texts) for _, _, entry in sorted(best, key=lambda candidate: (candidate[1], candidate[0]))
    ]
    return [view for view in views if view is not None], len(ranked) - len(best)


def run_answers(entry: Entry, texts: Texts) -> RunAnswers | None:
    """Return the predictions of one run; None if there is nothing to show."""
    heading = RunAnswers(entry.name, entry.transfer, entry.group)
    if entry.split.startswith("test"):
        return replace(heading, remarks=(_ON_TEST,))
    problems: list[str] = []
    answers = answers_of(entry, problems)
    remarks = tuple(f"{problem[0].upper()}{problem[1:]}." for problem in problems[:3])
    if not answers or not len(answers[0].examples) or answers[0].examples.kind == "pairs":
        return replace(heading, remarks=remarks) if remarks else None
    if answers[0].examples.kind == "tagging":
        sentences, missing = _sentences(entry, answers, texts)
        view = replace(heading, sentences=sentences)
    else:
        errors, missing = _errors(entry, answers, texts)
        view = replace(heading, errors=errors)
    remarks += (f"Some texts are not shown: {missing}.",) if missing else ()
    return replace(
        view,
        remarks=remarks,
        confusion=confusion(answers),
        class_scores=class_scores(answers),
        num_seeds=len(answers),
    )


def _errors(entry: Entry, answers: Sequence[Predictions], texts: Texts) -> tuple[list[dict[str, Any]], str]:
    kind = answers[0].examples.kind
    worst = {
        "classification": worst_labels,
        "multi_label": worst_label_sets,
        "regression": worst_scores,
        "span": worst_spans,
    }[kind](answers)
    lookup = _find(entry, answers[0], [error.row for error in worst], texts)
    return [_error(error, answers, lookup) for error in worst], lookup.missing


def _error(error: WrongAnswer, answers: Sequence[Predictions], texts: TextLookup) -> dict[str, Any]:
    examples = answers[0].examples
    text = texts.texts.get(int(examples.keys[error.row]))
    is_span = examples.kind == "span"
    has_passage = is_span and text is not None and len(text.content) > 1
    return {
        "name": examples.ids[error.row],
        "texts": [] if text is None or is_span else [_cut(part) for part in text.content],
        "gold": (error.gold or "no answer") if is_span else error.gold,
        "predicted": (error.predicted or "no answer") if is_span else error.predicted,
        "certainty": _certainty(error, kind=examples.kind),
        "question": _cut(text.content[0]) if has_passage and text else "",
        "pieces": _pieces(error, answers, text) if has_passage and text else [],
    }


def _pieces(error: WrongAnswer, answers: Sequence[Predictions], text: ExampleText) -> list[PassagePart]:
    passage = text.content[1]
    gold = find_span(passage, error.gold, start=text.gold_start)
    starts = {
        int(predictions.examples.starts[error.row])
        for predictions in answers
        if len(predictions.examples.starts) and predictions.examples.answers[error.row] == error.predicted
    }
    start = min((start for start in starts if start >= 0), default=None)
    near = None if gold is None else gold.start
    predicted = find_span(passage, error.predicted, start=start, near=near)
    pieces = excerpt(passage, gold=gold, predicted=predicted)
    return [PassagePart(printable(piece.text), piece.kind) for piece in pieces]


def _sentences(entry: Entry, answers: Sequence[Predictions], texts: Texts) -> tuple[list[dict[str, Any]], str]:
    worst = worst_sentences(answers)
    first = answers[0]
    lookup = _find(entry, first, [sentence.row for sentence in worst], texts)
    sentences = []
    for sentence in worst:
        text = lookup.texts.get(int(first.examples.keys[sentence.row]))
        if text is not None and len(text.content) == len(sentence.predicted):
            words = tagged_words(first, sentence, [printable(word) for word in text.content])
            name = first.examples.ids[sentence.row]
            sentences.append({"name": name, "words": words, "num_wrong": sentence.num_wrong})
    return sentences, lookup.missing


def _find(entry: Entry, predictions: Predictions, rows: Sequence[int], texts: Texts) -> TextLookup:
    return (
        texts.find(entry.run, predictions, [int(predictions.examples.keys[row]) for row in rows])
        if rows
        else TextLookup()
    )


def _certainty(error: WrongAnswer, *, kind: str) -> str:
    parts = []
    if error.score is not None:
        parts.append(f"F1 {100 * error.score:.0f} %" if kind == "span" else f"squared error {error.score:.2f}")
    if error.confidence is not None:
        parts.append(f"probability {100 * error.confidence:.0f} %")
    if error.num_agreeing is not None and error.num_seeds > 1:
        parts.append(f"{error.num_agreeing} of {error.num_seeds} seeds")
    return ", ".join(parts)


def _cut(text: str) -> str:
    clean = printable(text)
    return clean if len(clean) <= MAX_CHARACTERS else f"{clean[: MAX_CHARACTERS - 3]}..."
