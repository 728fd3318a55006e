"""The scores of a run, its control and its baselines over their seeds, and the predictions behind them."""

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

#: Names, or their last parts, of metrics for which lower is better.
_LOWER = re.compile(r"(?:.*[/_ ])?(?:loss|perplexity|entropy|error|mlm|nsp|sop|lm|rtd)")


def number(value: Any) -> float | None:
    """Convert ``value``, such as an entry of ``metrics.jsonl``, to a finite float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def higher_is_better(metric: str, result: Mapping[str, Any]) -> bool:
    """Whether higher is better: from the result, else from the metric's name (lower is better for losses)."""
    direction: bool | None = result.get("higher_is_better")
    return _LOWER.fullmatch(metric.lower()) is None if direction is None else direction


def is_worse(score: float, other: float, metric: str, result: Mapping[str, Any]) -> bool:
    """Whether a score is worse than another, given the direction of its metric."""
    return score < other if higher_is_better(metric, result) else score > other


@dataclass(frozen=True, slots=True)
class SeedValue:
    """One score of a run; the seeds are None if unknown or, for the pretraining, if there is only one."""

    value: float
    seed: int | None = None
    pretraining_seed: int | None = None


def seed_values(node: Mapping[str, Any], metric: str, seeds: Sequence[Mapping[str, Any]] = ()) -> list[SeedValue]:
    """Return the metric of each seed.

    Args:
        node: a ``result.json``, or its part about a control or a baseline.
        seeds: each ``result.json`` from the seeds' run directories, which counts if ``node`` does not list its seeds.
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
    """Return the scores by the task's ``metrics`` other than the first; for the rest see ``seed_values``."""
    scores = {metric: [seed.value for seed in seed_values(node, metric, seeds)] for metric in metrics[1:]}
    return {metric: spread(values) for metric, values in scores.items() if values}


def control_part(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a result about the control; empty if there is none, or if the run itself is a control."""
    node = result.get("control")
    return node if isinstance(node, Mapping) else {}


def majority(result: Mapping[str, Any], metric: str) -> float | None:
    """Return the score of always predicting the most common label, if the result contains it."""
    return (result.get("majority") or {}).get(metric)


def read_answers(run: Path, problems: list[str] | None = None) -> list[Predictions]:
    """Read the predictions of a run, its seeds, its control and its baselines; note unreadable files as problems."""
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
    """Select the predictions behind some of a run's scores, in order; None if some are missing or ambiguous.

    Args:
        predictions: all predictions that the run has kept.
        baseline: the baseline with these scores; empty for a model.
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
    """Return the contribution of each example to each of the scores, in the order of the predictions.

    Returns:
        None if the predictions are of different examples, or do not determine the metric.
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
    """Return the mean score of each example over training runs, shape (N,); NaN if the example does not count."""
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
    """Read the scores of a run, its control or a baseline as a side of a comparison; None if there are none.

    The condition is never paired if a seed is unknown or occurs twice. It is constant if its seeds have no effect and
    it has only one pretraining.

    Args:
        node: see ``seed_values``, like ``seeds``.
        pretraining: the run that the weights come from; None for random weights.
        predictions: all predictions that the run has kept; for the rest see ``select_predictions``.
    """
    values = seed_values(node, metric, seeds)
    if not values:
        return None
    selection = select_predictions(predictions, values, split=split, is_control=is_control, baseline=baseline)
    names = [
        pretraining if None in (pretraining, value.pretraining_seed) else f"{pretraining}/{value.pretraining_seed}"
        for value in values
    ]
    known = {(name, value.seed) for name, value in zip(names, values, strict=True) if value.seed is not None}
    can_be_paired = len(known) == len(values)
    scores = tuple(
        Score(value.value, value.seed if can_be_paired and value.seed is not None else f"unknown {place}", name)
        for place, (name, value) in enumerate(zip(names, values, strict=True))
    )
    return Condition(
        scores,
        None if selection is None else examples_of(selection, metric),
        int(node.get("collapsed") or 0),
        "" if can_be_paired else None,
        constant=bool(node.get("deterministic")) and len(set(names)) == 1,
    )
