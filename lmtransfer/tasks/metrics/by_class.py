"""Precision, recall and F1 by class, where a class is a label or a kind of chunk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

import numpy as np

from lmtransfer.tasks.metrics.chunks import Chunk, Chunks, chunk_scores
from lmtransfer.tasks.metrics.scored_examples import ScoredExamples

#: Maximum number of classes whose scores are written.
MOST_CLASSES = 200


#: The scores of one class: ``precision``, ``recall`` and ``f1``, 0 to 1 (0 where the denominator is 0), and
#: ``support``, the number of its gold answers.
ClassScores: TypeAlias = dict[str, float]


def scores_by_class(answers: ScoredExamples) -> dict[str, ClassScores]:
    """Score each class separately.

    Returns:
        The scores by class name: for each label, or for each kind of chunk if tags mark chunks. Empty if the answers
            have no classes, or more than ``MOST_CLASSES``.
    """
    if answers.kind == "tagging" and "f1" in answers.ratios:
        scores = _of_chunks(answers)
    elif answers.kind in ("classification", "tagging"):
        scores = _of_labels(answers.labels, answers.gold, answers.predicted, classes=range(len(answers.labels)))
    elif answers.kind == "multi_label":
        gold_NC, predicted_NC = (side.reshape(-1, len(answers.labels)) for side in (answers.gold, answers.predicted))
        scores = _of_labels(answers.labels, gold_NC, predicted_NC, classes=None)
    else:
        return {}
    return scores if len(scores) <= MOST_CLASSES else {}


def _of_labels(
    names: Sequence[str], gold: np.ndarray, predicted: np.ndarray, *, classes: Sequence[int] | None
) -> dict[str, ClassScores]:
    from sklearn.metrics import precision_recall_fscore_support  # imported here, as in ``metrics.labels``

    columns = precision_recall_fscore_support(gold, predicted, labels=classes, zero_division=0.0)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    scores = ("precision", "recall", "f1", "support")
    return {name: dict(zip(scores, row, strict=True)) for name, row in zip(names, rows, strict=True)}


def _of_chunks(answers: ScoredExamples) -> dict[str, ClassScores]:
    chunks = Chunks(labels=answers.labels)
    right, predicted, gold = Counter[str](), Counter[str](), Counter[str]()
    for start, stop in zip(answers.offsets[:-1].tolist(), answers.offsets[1:].tolist(), strict=True):
        of_predicted, of_gold = (set[Chunk](chunks.of(side[start:stop])) for side in (answers.predicted, answers.gold))
        for counter, group in ((right, of_predicted & of_gold), (predicted, of_predicted), (gold, of_gold)):
            counter.update(chunk.kind for chunk in group)
    return {
        kind: {**chunk_scores(right[kind], predicted[kind], gold[kind]), "support": gold[kind]}
        for kind in sorted({*predicted, *gold})
    }


def mean_by_class(seeds: Sequence[Mapping[str, ClassScores]]) -> dict[str, ClassScores]:
    """Return the mean of each score over seeds, for the classes that all seeds have.

    Args:
        seeds: the result of ``scores_by_class`` for each seed.
    """
    names = [name for name in seeds[0] if all(name in scores for scores in seeds)]
    return {name: {score: fmean(scores[name][score] for scores in seeds) for score in seeds[0][name]} for name in names}
