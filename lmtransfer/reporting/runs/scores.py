"""Reads the scores of a run, its control and its baselines for each seed, and the predictions behind the scores."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmtransfer.errors import RunDirectoryError
from lmtransfer.runs.predictions import prediction_files, read_predictions
from lmtransfer.runs.result import SeedResult
from lmtransfer.tasks.metrics.scored_examples import Predictions, contributions
from lmtransfer.verdicts.conditions import Condition, Examples, Score
from lmtransfer.verdicts.spread import Spread, spread

#: The names, or the last parts of the names, of metrics for which lower values are better.
_LOWER = re.compile(r"(?:.*[/_ ])?(?:loss|perplexity|entropy|error|mlm|nsp|sop|lm|rtd)")


def number(value: Any) -> float | None:
    """Return ``value`` as a float if it is a finite number, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def higher_is_better(metric: str, result: Mapping[str, Any]) -> bool:
    """Whether higher values are better, according to the result or, failing that, the metric's name."""
    direction: bool | None = result.get("higher_is_better")
    return _LOWER.fullmatch(metric.lower()) is None if direction is None else direction


def is_worse(score: float, other: float, metric: str, result: Mapping[str, Any]) -> bool:
    """Whether a value of ``metric`` is worse than another."""
    return score < other if higher_is_better(metric, result) else score > other


@dataclass(frozen=True, slots=True)
class SeedValue:
    """The score of one seed.

    Attributes:
        seed: None if unknown.
        pretraining_seed: None if unknown or if there is only one.
    """

    value: float
    seed: int | None = None
    pretraining_seed: int | None = None


def seed_values(node: Mapping[str, Any], metric: str, seeds: Sequence[Mapping[str, Any]] = ()) -> list[SeedValue]:
    """Return the value of a metric for each seed.

    Args:
        node: a result, or its entry for a control or a baseline.
        seeds: the results in the run directories of the seeds, which are used if ``node`` does not list its seeds.
    """
    parts = node.get("seeds") or seeds or [node]
    return [
        SeedValue(float(value), part.get("seed"), part.get("pretraining_seed"))
        for part in parts
        if (value := (part.get("metrics") or {}).get(metric)) is not None
    ]


def other_metrics(
    node: Mapping[str, Any], metrics: Sequence[str], seeds: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Spread]:
    """Return the spread of each metric in ``metrics`` except the first; see ``seed_values`` for the other arguments."""
    scores = {metric: [seed.value for seed in seed_values(node, metric, seeds)] for metric in metrics[1:]}
    return {metric: spread(values) for metric, values in scores.items() if values}


def control_part(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a result's entry for the control; empty if there is none or if the run itself is a control."""
    node = result.get("control")
    return node if isinstance(node, Mapping) else {}


def majority(result: Mapping[str, Any], metric: str) -> float | None:
    """Return the score of always predicting the most common label; None if unknown."""
    return (result.get("majority") or {}).get(metric)


def read_answers(run: Path, problems: list[str] | None = None) -> list[Predictions]:
    """Read the predictions of a run, its seeds, its control and its baselines; add unreadable files to ``problems``."""
    answers = []
    for file in prediction_files(run):
        try:
            answers.append(read_predictions(file))
        except RunDirectoryError as error:
            if problems is not None:
                problems.append(str(error))
    return answers


def select_predictions(
    predictions: Sequence[Predictions],
    values: Sequence[SeedValue | SeedResult],
    *,
    split: str,
    is_control: bool = False,
    baseline: str = "",
) -> list[Predictions] | None:
    """Return the predictions behind each of ``values``, in order; None if some are missing or ambiguous.

    Args:
        predictions: all predictions that the run kept.
        baseline: the name of the baseline with these scores; empty for a model.
    """
    candidates = [p for p in predictions if (p.split, p.is_control, p.baseline) == (split, is_control, baseline)]
    selection = []
    for value in values:
        matches = [
            candidate
            for candidate in candidates
            if value.seed in (None, candidate.seed) and value.pretraining_seed in (None, candidate.pretraining_seed)
        ]
        if len(matches) != 1:
            return None
        selection.append(matches[0])
    return selection


def examples_of(predictions: Sequence[Predictions], metric: str) -> Examples | None:
    """Return the contribution of each example to the score of each of ``predictions``.

    Returns:
        None if the predictions are for different examples, or do not determine the metric.
    """
    if not predictions:
        return None
    keys, order = np.unique(predictions[0].examples.keys, return_index=True)
    rows = []
    for of_seed in predictions:
        parts = contributions(of_seed.examples, metric)
        own, place = np.unique(of_seed.examples.keys, return_index=True)
        if parts is None or not np.array_equal(own, keys):
            return None
        rows.append(parts[place])
    clusters = predictions[0].examples.clusters[order]
    are_independent = len(np.unique(clusters)) == len(clusters)
    return Examples(np.stack(rows), keys, None if are_independent else clusters)


def mean_scores(predictions: Sequence[Predictions], score: str) -> np.ndarray:
    """Return the mean score of each example over training runs, shape (N,); NaN for examples without a score."""
    ratios = [of_seed.examples.ratios[score] for of_seed in predictions]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.mean([ratio.parts / ratio.counts for ratio in ratios], axis=0)


def read_condition(
    node: Mapping[str, Any],
    metric: str,
    seeds: Sequence[Mapping[str, Any]] = (),
    *,
    pretraining: str | None = None,
    predictions: Sequence[Predictions] = (),
    split: str = "",
    is_control: bool = False,
    baseline: str = "",
) -> Condition | None:
    """Return the scores of a run, its control or a baseline as a side of a comparison; None if there are none.

    Args:
        node: see ``seed_values``, which also explains ``seeds``.
        pretraining: the run that the weights come from; None for random weights.
        predictions: see ``select_predictions``, which also explains the other arguments.
    """
    values = seed_values(node, metric, seeds)
    if not values:
        return None
    selection = select_predictions(predictions, values, split=split, is_control=is_control, baseline=baseline)
    names = [
        pretraining if None in (pretraining, value.pretraining_seed) else f"{pretraining}/{value.pretraining_seed}"
        for value in values
    ]
    return make_condition(
        [(value.value, value.seed, name) for value, name in zip(values, names, strict=True)],
        None if selection is None else examples_of(selection, metric),
        collapsed=int(node.get("collapsed") or 0),
        constant=bool(node.get("deterministic")),
    )


def make_condition(
    scores: Sequence[tuple[float, int | None, str | None]],
    examples: Examples | None,
    *,
    collapsed: int,
    constant: bool,
) -> Condition:
    """Build a side of a comparison.

    The condition cannot be paired if a seed is unknown or occurs twice. It is constant if the seeds have no effect and
    there is only one pretraining run.

    Args:
        scores: the value, the seed and the pretraining run for each training run; None if unknown or random.
        constant: whether the seeds have no effect.
    """
    known = {(pretraining, seed) for _, seed, pretraining in scores if seed is not None}
    can_be_paired = len(known) == len(scores)
    is_constant = constant and len({pretraining for _, _, pretraining in scores}) == 1
    return Condition(
        tuple(
            Score(value, seed if can_be_paired and seed is not None else f"unknown {index}", pretraining)
            for index, (value, seed, pretraining) in enumerate(scores)
        ),
        examples,
        collapsed,
        "" if can_be_paired else None,
        constant=is_constant,
    )
