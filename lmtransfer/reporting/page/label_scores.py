"""Precision, recall and F1 of each label, for tasks with any number of labels for each example.

Shape legend: N examples, C labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmtransfer.tasks.metrics.scored_examples import Kept

#: Up to this many labels are shown: those with the most gold examples.
MOST_LABELS = 30


@dataclass(frozen=True, slots=True)
class LabelScore:
    """One label.

    Attributes:
        label: its name.
        precision: share of the examples with this answer that have it as gold label, 0 to 1; None if there are none.
        recall: share of the examples with this gold label that have it as answer, 0 to 1; None if there are none.
        f1: F1, 0 to 1; None if the label occurs neither as gold label nor as answer.
        num_gold: number of examples with this gold label.
    """

    label: str
    precision: float | None
    recall: float | None
    f1: float | None
    num_gold: int


def label_scores(answers: Sequence[Kept]) -> tuple[LabelScore, ...]:
    """The scores of the most frequent labels, over all seeds together; empty for other kinds of answers.

    Args:
        answers: the kept answers of each seed to the same examples.
    """
    if not answers or answers[0].examples.kind != "multi_label":
        return ()
    examples = answers[0].examples
    shape = len(answers), len(examples), len(examples.labels)
    said_SNC = np.stack([kept.examples.predicted for kept in answers]).reshape(shape)
    gold_NC = examples.gold.reshape(shape[1:])
    right_C, said_C, gold_C = (said_SNC * gold_NC).sum((0, 1)), said_SNC.sum((0, 1)), len(answers) * gold_NC.sum(0)
    return tuple(
        LabelScore(
            label=examples.labels[label],
            precision=_share(right_C[label], said_C[label]),
            recall=_share(right_C[label], gold_C[label]),
            f1=_share(2 * right_C[label], said_C[label] + gold_C[label]),
            num_gold=int(gold_NC[:, label].sum()),
        )
        for label in np.argsort(-gold_C, kind="stable")[:MOST_LABELS].tolist()
    )


def _share(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None
