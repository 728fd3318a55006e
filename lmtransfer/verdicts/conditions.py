"""The two sides of a comparison: their scores, the seeds of each score, and the contribution of each example.

Shape legend: S scores (training runs) of a condition, N scored examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmtransfer.verdicts.spread import Spread, spread


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one training run on a task.

    Attributes:
        value: the metric, in its own unit (an accuracy is a fraction).
        seed: seed of finetuning or of the probe. It determines the subset, the order and the head's initial weights.
            Two scores of different conditions with the same seed form a pair (see ``Condition.design``).
        pretraining: the pretraining run that the weights come from, such as ``runs/pretrain/imdb/seed-1``; equal
            strings mean the same checkpoint. None for random weights, which differ for each seed.
    """

    value: float
    seed: int | str
    pretraining: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """The contribution of each example to each score of a condition.

    Attributes:
        scores: float, shape (S, N), with rows in the order of ``Condition.scores``. The mean of a row is the score: the
            values are 0 and 1 for an accuracy, and each example's F1 for a mean F1. Other metrics (Matthews, F1 of
            chunks) have no contributions, or the pseudo-values of a jackknife, whose mean is the score to within 0.001.
        ids: the id of the example in each column, shape (N,), without duplicates; two conditions are matched by them.
        clusters: the passage or dialogue of each example, shape (N,), if examples share one; None if each is
            independent.
    """

    scores: np.ndarray
    ids: np.ndarray
    clusters: np.ndarray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """One side of a comparison.

    Attributes:
        scores: the scores of all training runs, in any order; no two have both the same pretraining and the same seed.
        examples: the contribution of each example, if predictions were kept.
        collapsed: number of scores whose run predicts the same label for every example.
        design: everything that, together with the seed, determines subset, order and head, such as the task and the
            settings, in one string. Conditions with the same design are paired by their seeds. Conditions with
            different designs, or with None, are independent.
        constant: whether nothing in the condition is random: a baseline, or the optimum of a convex problem on one
            training set. All seeds then have the same score, which does not count as a lack of spread: the interval of
            a comparison comes from the seeds of the other side and from the examples.
    """

    scores: tuple[Score, ...]
    examples: Examples | None = None
    collapsed: int = 0
    design: str | None = ""
    constant: bool = False

    def __post_init__(self) -> None:
        if not self.scores:
            raise ValueError("a condition needs at least one score")
        if len({(score.pretraining, score.seed) for score in self.scores}) < len(self.scores):
            raise ValueError("two scores have the same pretraining and the same seed: pass each training run once")
        if self.examples is not None and len(self.examples.scores) != len(self.scores):
            raise ValueError(f"examples has {len(self.examples.scores)} rows, but there are {len(self.scores)} scores")

    @property
    def spread(self) -> Spread:
        """The mean, median and deviation of all scores."""
        return spread([score.value for score in self.scores])

    @property
    def pretrainings(self) -> tuple[str | None, ...]:
        """The checkpoints of the scores, each once, in the order of first appearance."""
        return tuple(dict.fromkeys(score.pretraining for score in self.scores))


def condition(
    values: Sequence[float], *, seeds: Sequence[int | str] | None = None, pretraining: str | None = None
) -> Condition:
    """Build a condition for one checkpoint."""
    seeds = range(len(values)) if seeds is None else seeds
    return Condition(tuple(Score(value, seed, pretraining) for value, seed in zip(values, seeds, strict=True)))
