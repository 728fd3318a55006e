"""Confusion matrices: how often each gold label received each answer.

Shape legend: R answers (examples, or words), C labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmtransfer.reporting.table import ReportTable, plain_table
from lmtransfer.tasks.metrics.scored_examples import Predictions

#: Maximum number of labels for a matrix; with more labels there is a list of the most confused pairs.
MAX_LABELS = 20
#: Maximum number of confused pairs to list.
MAX_PAIRS = 15


@dataclass(frozen=True, slots=True)
class CountCell:
    """How often a gold label received an answer.

    Attributes:
        count: number of answers, over all seeds.
        share: ``count`` divided by the number of all answers to this gold label, 0 to 1.
        is_right: whether the answer is the gold label.
    """

    count: int
    share: float
    is_right: bool


@dataclass(frozen=True, slots=True)
class GoldRow:
    """The answers to the examples of one gold label."""

    label: str
    cells: tuple[CountCell, ...]
    total: int


@dataclass(frozen=True, slots=True)
class Confusion:
    """The confusions of a run.

    Attributes:
        unit: what is counted: answers or words.
        num_answers: number of answers over all seeds.
        num_seeds: number of seeds.
        labels: the labels that are gold or predicted at least once, in the task's order.
        rows: the matrix, one row per label; empty if there are more labels than ``MAX_LABELS``.
        pairs: the most frequent wrong answers, most frequent first; None if there is a matrix.
        num_pairs: number of distinct pairs of a gold label and a wrong answer.
    """

    unit: str
    num_answers: int
    num_seeds: int
    labels: tuple[str, ...]
    rows: tuple[GoldRow, ...]
    pairs: ReportTable | None
    num_pairs: int


def confusion(answers: Sequence[Predictions]) -> Confusion | None:
    """Count the answers of all seeds together; None if the answers are not labels.

    Args:
        answers: the kept answers of each seed, with the same labels.
    """
    if not answers or answers[0].examples.kind not in ("classification", "tagging"):
        return None
    names = answers[0].examples.labels
    gold_R = np.concatenate([predictions.examples.gold for predictions in answers])
    predicted_R = np.concatenate([predictions.examples.predicted for predictions in answers])
    if not len(gold_R):
        return None
    # A pair is encoded as one number, so that many labels need no C x C array.
    codes, counts = np.unique(gold_R * len(names) + predicted_R, return_counts=True)
    gold_answers, predicted_answers = codes // len(names), codes % len(names)
    totals = dict(zip(*(values.tolist() for values in np.unique(gold_R, return_counts=True)), strict=True))
    pair_counts = dict(
        zip(zip(gold_answers.tolist(), predicted_answers.tolist(), strict=True), counts.tolist(), strict=True)
    )
    used_labels = sorted({*gold_answers.tolist(), *predicted_answers.tolist()})
    with_matrix = len(used_labels) <= MAX_LABELS
    unit = "words" if answers[0].examples.kind == "tagging" else "answers"
    return Confusion(
        unit=unit,
        num_answers=len(gold_R),
        num_seeds=len(answers),
        labels=tuple(names[label] for label in used_labels),
        rows=_rows(pair_counts, totals, used_labels, names) if with_matrix else (),
        pairs=None if with_matrix else _pairs(pair_counts, totals, names, unit),
        num_pairs=sum(gold != predicted for gold, predicted in pair_counts),
    )


_Counts = dict[tuple[int, int], int]


def _rows(
    pair_counts: _Counts, totals: dict[int, int], used_labels: Sequence[int], names: Sequence[str]
) -> tuple[GoldRow, ...]:
    rows = []
    for gold in used_labels:
        total = totals.get(gold, 0)
        cells = tuple(
            CountCell(count, count / total if total else 0.0, gold == predicted)
            for predicted, count in ((predicted, pair_counts.get((gold, predicted), 0)) for predicted in used_labels)
        )
        rows.append(GoldRow(names[gold], cells, total))
    return tuple(rows)


def _pairs(pair_counts: _Counts, totals: dict[int, int], names: Sequence[str], unit: str) -> ReportTable:
    wrong = sorted((-count, pair) for pair, count in pair_counts.items() if pair[0] != pair[1])
    rows = [
        (names[gold], names[predicted], f"{-count:,}", f"{-100 * count / totals[gold]:.1f} %")
        for count, (gold, predicted) in wrong[:MAX_PAIRS]
    ]
    return plain_table("Confused labels", ("gold", "answer", unit, "share of gold"), rows)
