"""What is compared: the scores of a condition, each with its seeds, and what each example contributed to them.

Shape letters: ``S`` scores (training runs) of a condition, ``N`` examples that were scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmtransfer.verdicts.spread import Spread, spread


@dataclass(frozen=True, slots=True)
class Score:
    """One training run of a task, scored.

    Attributes:
        value: the metric, in its own unit (an accuracy is a fraction).
        seed: of finetuning or of the probe: it decides subset, order and the head's first weights. Two scores of
            different conditions with one seed are a pair (see ``Condition.design``).
        pretraining: which pretraining the weights are of, such as ``runs/pretrain/imdb/seed-1``; equal strings are one
            checkpoint. None: random initialisation, drawn anew with each seed.
    """

    value: float
    seed: int | str
    pretraining: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """What each example contributed to each score of a condition.

    Attributes:
        scores: float, shape (S, N), rows in the order of ``Condition.scores``. The mean of a row is the score: 0 and 1
            for an accuracy, an example's F1 for an F1 that is their mean. Of another metric (Matthews, F1 of chunks)
            there are none, or the pseudo-values of a jackknife, whose mean is the score to within 0.001.
        ids: which example each column is, shape (N,), each once; columns of two conditions are matched by it.
        clusters: the passage or dialogue of each example, shape (N,), where examples share one; None where each stands
            for itself.
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
        scores: of all its training runs, in any order; no two of one pretraining and one seed.
        examples: their examples, where predictions were kept.
        collapsed: how many of the scores come from answering one and the same label throughout.
        design: what, beside the seed, fixes subset, order and head, such as task and settings in one string. Arms of
            one design are paired by their seeds; of different ones they count as independent, as does one of None.
    """

    scores: tuple[Score, ...]
    examples: Examples | None = None
    collapsed: int = 0
    design: str | None = ""

    def __post_init__(self) -> None:
        if not self.scores:
            raise ValueError("a condition needs at least one score")
        if len({(score.pretraining, score.seed) for score in self.scores}) < len(self.scores):
            raise ValueError("two scores of one pretraining and one seed")
        if self.examples is not None and len(self.examples.scores) != len(self.scores):
            raise ValueError(f"examples of {len(self.examples.scores)} scores for {len(self.scores)}")

    @property
    def spread(self) -> Spread:
        """Mean, median and deviation of all its scores."""
        return spread([score.value for score in self.scores])

    @property
    def pretrainings(self) -> tuple[str | None, ...]:
        """Its checkpoints, each once, in the order in which they come."""
        return tuple(dict.fromkeys(score.pretraining for score in self.scores))


def condition(
    values: Sequence[float], *, seeds: Sequence[int | str] | None = None, pretraining: str | None = None
) -> Condition:
    """A condition of one checkpoint.

    Args:
        values: one score a seed.
        seeds: of finetuning; 0, 1, ... by default.
        pretraining: the checkpoint; None for random initialisation.
    """
    names = range(len(values)) if seeds is None else seeds
    return Condition(tuple(Score(value, seed, pretraining) for value, seed in zip(values, names, strict=True)))


def condition_of_summary(summary: Spread, *, pretraining: str | None = None, collapsed: int = 0) -> Condition:
    """A condition of which no more than mean, deviation and number of seeds are known: it is never paired.

    Evenly spaced stand-ins have the same mean and deviation, which is all that an unpaired comparison looks at.

    Args:
        summary: of the scores.
        pretraining: the checkpoint; None for random initialisation.
        collapsed: how many of the scores come from answering one and the same label throughout.
    """
    n = summary.n if summary.deviation is not None else 1
    steps = np.arange(n) - (n - 1) / 2
    scale = 0.0 if n == 1 else (summary.deviation or 0.0) / float(np.std(steps, ddof=1))
    values = summary.mean + scale * steps
    scores = tuple(Score(float(value), f"unknown {place}", pretraining) for place, value in enumerate(values))
    return Condition(scores, collapsed=collapsed, design=None)
