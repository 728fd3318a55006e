"""Flipped examples, which only one of two sides answers correctly.

Shape letters: ``S`` training runs of a side, ``N`` examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmtransfer.tasks.metrics.scored_examples import Predictions, ScoredExamples

#: A side answers an example correctly if the mean score of its runs is above this, and wrongly if it is below.
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class Flip:
    """One example.

    Attributes:
        id: the example's id.
        gold: the correct answer; empty if it is longer than a word or two.
        one: the most frequent answer of the first side's training runs.
        other: the most frequent answer of the second side's training runs.
        scores: mean score of each side, 0 to 1; for tasks that predict scores, the mean squared error.
    """

    id: str
    gold: str
    one: str
    other: str
    scores: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Flips:
    """All flipped examples of a comparison.

    Attributes:
        score: how an example is scored: accuracy, f1 or squared_error.
        counts: number of examples that both sides, only the first, only the second, and neither answer correctly; None
            if an answer is not simply right or wrong.
        to_one: examples that the first side answers better, largest difference first.
        to_other: examples that the second side answers better, largest difference first.
    """

    score: str
    counts: tuple[int, int, int, int] | None
    to_one: tuple[Flip, ...]
    to_other: tuple[Flip, ...]


def find_flips(one: Sequence[Predictions], other: Sequence[Predictions]) -> Flips | None:
    """Find the flipped examples from the answers of two sides to the same examples, in the same order.

    Args:
        one: the answers of each training run of the first side.
        other: the answers of each training run of the second side.
    """
    examples = one[0].examples
    ratios = examples.ratios
    candidates = [name for name in (one[0].main_metric, "accuracy", "f1", "squared_error") if name in ratios]
    if not candidates or not all(candidates[0] in predictions.examples.ratios for predictions in (*one, *other)):
        return None
    score = candidates[0]
    first, second = (_mean_scores(side, score) for side in (one, other))
    gain = second - first if score == "squared_error" else first - second
    is_finite = np.isfinite(gain)
    counts = None
    better, worse = is_finite & (gain > 0), is_finite & (gain < 0)
    if score != "squared_error":
        first_right, second_right = first > _HALF, second > _HALF
        first_wrong, second_wrong = first < _HALF, second < _HALF
        better, worse = first_right & second_wrong, first_wrong & second_right
        counts = (
            int((first_right & second_right).sum()),
            int(better.sum()),
            int(worse.sum()),
            int((first_wrong & second_wrong).sum()),
        )

    def flips(mask: np.ndarray) -> tuple[Flip, ...]:
        rows = np.flatnonzero(mask)
        rows = rows[np.argsort(-np.abs(gain[rows]), kind="stable")]
        return tuple(
            Flip(
                examples.ids[row], _gold(examples, row), _majority_answer(one, row), _majority_answer(other, row),
                (float(first[row]), float(second[row])),
            )
            for row in rows.tolist()
        )  # fmt: skip

    return Flips(score, counts, flips(better), flips(worse))


def _mean_scores(side: Sequence[Predictions], score: str) -> np.ndarray:
    """Return the mean score of each example over a side's runs, shape (N,); NaN if the example does not count."""
    with np.errstate(invalid="ignore", divide="ignore"):
        scores = [
            predictions.examples.ratios[score].parts / predictions.examples.ratios[score].counts for predictions in side
        ]
    return np.mean(scores, axis=0)


def _gold(examples: ScoredExamples, row: int) -> str:
    if examples.kind == "classification":
        return examples.labels[examples.gold[row]]
    if examples.kind == "multi_label":
        return examples.label_set(examples.gold, row)
    if examples.kind == "regression":
        return f"{examples.gold[row]:g}"
    if examples.kind == "tagging":
        gold = examples.gold[examples.offsets[row] : examples.offsets[row + 1]]
        return " ".join(examples.labels[tag] for tag in gold)
    return examples.gold_answers[row] if examples.gold_answers else ""


def _majority_answer(side: Sequence[Predictions], row: int) -> str:
    """Return the runs' most frequent answer, with its count unless all runs agree."""
    if side[0].examples.kind == "regression":
        return f"{np.mean([predictions.examples.predicted[row] for predictions in side]):.3f}"
    answers = Counter(_answer(predictions.examples, row) for predictions in side)
    answer, times = answers.most_common(1)[0]
    return answer if times == len(side) else f"{answer} ({times} of {len(side)})"


def _answer(examples: ScoredExamples, row: int) -> str:
    if examples.kind == "classification":
        return examples.labels[examples.predicted[row]]
    if examples.kind == "multi_label":
        return examples.label_set(examples.predicted, row)
    if examples.kind == "tagging":
        predicted_tags = examples.predicted[examples.offsets[row] : examples.offsets[row + 1]]
        return " ".join(examples.labels[tag] for tag in predicted_tags)
    if examples.kind == "pairs":
        ratio = examples.ratios["accuracy"]
        return "right" if ratio.parts[row] > 0 else "wrong"
    return examples.answers[row] or "(no answer)"
