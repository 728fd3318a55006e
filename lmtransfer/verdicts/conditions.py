"""The compared conditions: their scores, the seeds of each score, and the contribution of each example.

Shape letters: ``S`` scores (training runs) of a condition, ``N`` scored examples.
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
            strings mean the same checkpoint. None for random initialisation, sampled again for each seed.
    """

    value: float
    seed: int | str
    pretraining: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """The contribution of each example to each score of a condition.

    Attributes:
        scores: float, shape (S, N), rows in the order of ``Condition.scores``. The mean of a row is the score: 0 and 1
            for an accuracy, the F1 of an example for a mean F1. For other metrics (Matthews, F1 of chunks) there are
            none, or the pseudo-values of a jackknife, whose mean is the score to within 0.001.
        ids: the example in each column, shape (N,), without duplicates; they match the columns of two conditions.
        clusters: the passage or dialogue of each example, shape (N,), if examples share one; None if each is
            independent.
    """

    scores: np.ndarray
    ids: np.ndarray
    clusters: np.ndarray | None = None

    def __post_init__(self) -> None:
        num = self.scores.shape[-1]
        if self.scores.ndim != 2 or self.ids.shape != (num,):
            raise ValueError(f"scores of shape {self.scores.shape} with ids of shape {self.ids.shape}")
        if self.clusters is not None and self.clusters.shape != (num,):
            raise ValueError(f"clusters of shape {self.clusters.shape} for {num} examples")


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """One side of a comparison.

    Attributes:
        scores: scores of all its training runs, in any order; no two with the same pretraining and the same seed.
        examples: the contribution of each example, if predictions were kept.
        collapsed: number of scores whose run predicts the same label for every example.
        design: what, together with the seed, determines subset, order and head, such as task and settings in one
            string. Conditions of the same design are paired by their seeds. Conditions of different designs, or with
            None, are independent.
        constant: whether nothing in the condition is random: a baseline, or the optimum of a convex problem on one
            training set. Its scores are equal for all seeds, which is not a lack of spread: the interval of a
            comparison comes from the seeds of the other side and from the examples.
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
            raise ValueError("two scores have the same pretraining and the same seed: give each training run once")
        if self.examples is not None and len(self.examples.scores) != len(self.scores):
            raise ValueError(f"examples of {len(self.examples.scores)} scores for {len(self.scores)}")

    @property
    def spread(self) -> Spread:
        """Mean, median and deviation of all its scores."""
        return spread([score.value for score in self.scores])

    @property
    def pretrainings(self) -> tuple[str | None, ...]:
        """Its checkpoints, each once, in the order of first appearance."""
        return tuple(dict.fromkeys(score.pretraining for score in self.scores))


def condition(
    values: Sequence[float], *, seeds: Sequence[int | str] | None = None, pretraining: str | None = None
) -> Condition:
    """Build a condition for one checkpoint.

    Args:
        values: one score for each seed.
        seeds: seeds of finetuning; 0, 1, ... by default.
        pretraining: the checkpoint; None for random initialisation.
    """
    names = range(len(values)) if seeds is None else seeds
    return Condition(tuple(Score(value, seed, pretraining) for value, seed in zip(values, names, strict=True)))


def condition_of_summary(summary: Spread, *, pretraining: str | None = None, collapsed: int = 0) -> Condition:
    """Build a condition, which is never paired, from mean, deviation and number of seeds alone.

    Evenly spaced values with the same mean and deviation replace the unknown scores; an unpaired comparison uses
    nothing else.

    Args:
        summary: mean, deviation and number of the scores.
        pretraining: the checkpoint; None for random initialisation.
        collapsed: number of scores whose run predicts the same label for every example.
    """
    n = summary.n if summary.deviation is not None else 1
    steps = np.arange(n) - (n - 1) / 2
    scale = 0.0 if n == 1 else (summary.deviation or 0.0) / float(np.std(steps, ddof=1))
    values = summary.mean + scale * steps
    scores = tuple(Score(float(value), f"unknown {place}", pretraining) for place, value in enumerate(values))
    return Condition(scores, collapsed=collapsed, design=None)
