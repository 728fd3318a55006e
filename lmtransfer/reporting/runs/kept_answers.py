"""Saved predictions, and the contribution of each example to each score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmtransfer.errors import RunDirectoryError
from lmtransfer.reporting.runs import scores
from lmtransfer.runs.predictions import prediction_files, read_predictions
from lmtransfer.tasks.metrics.scored_examples import Predictions, contributions
from lmtransfer.verdicts.conditions import Examples


def read_answers(run: Path, problems: list[str] | None = None) -> list[Predictions]:
    """Read the kept predictions of a run, its seeds, its control and its baselines; skip unreadable files.

    Args:
        problems: receives one message for each skipped file.
    """
    answers = []
    for file in prediction_files(run):
        try:
            answers.append(read_predictions(file))
        except RunDirectoryError as error:
            if problems is not None:
                problems.append(str(error))
    return answers


def examples_of(predictions: Sequence[Predictions], metric: str) -> Examples | None:
    """Return the contribution of each example to each of the scores.

    Args:
        predictions: the predictions, in the order of the scores.

    Returns:
        The contributions; None if the predictions are of different examples, or do not determine the metric.
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


def select_predictions(
    predictions: Sequence[Predictions],
    seeds: Sequence[tuple[int | None, int | None]],
    *,
    split: str,
    is_control: bool = False,
    baseline: str = "",
) -> list[Predictions] | None:
    """Select the predictions behind some of a run's scores, in order; None if some are missing or ambiguous.

    Args:
        predictions: all predictions that the run has kept.
        seeds: finetuning seed and pretraining seed of each score, if known.
        split: the scored split.
        is_control: whether the scores are those of the run's control.
        baseline: the baseline with these scores; empty for a model.
    """
    candidates = [p for p in predictions if (p.split, p.is_control, p.baseline) == (split, is_control, baseline)]
    selection = []
    for seed, pretraining_seed in seeds:
        matches = [
            candidate
            for candidate in candidates
            if (seed is None or candidate.seed == seed)
            and (pretraining_seed is None or candidate.pretraining_seed == pretraining_seed)
        ]
        if len(matches) != 1:
            return None
        selection.append(matches[0])
    return selection


def examples_of_score(
    predictions: Sequence[Predictions],
    node: Any,
    metric: str,
    seeds: Sequence[Mapping[str, Any]] = (),
    *,
    split: str,
    is_control: bool = False,
    baseline: str = "",
) -> Examples | None:
    """Return the contribution of each example to the scores of a result, in the order of ``scores.seed_values``.

    Args:
        predictions: the predictions that the run has kept.
        node: the run's result, or the control's part of a result.
        seeds: the results from the seeds' run directories.
        split: the scored split.
        is_control: whether ``node`` is the control's part.
        baseline: the baseline that ``node`` describes; empty for a model.
    """
    values = scores.seed_values(node, metric, seeds)
    names = [(value.seed, value.pretraining_seed) for value in values]
    selection = (
        select_predictions(predictions, names, split=split, is_control=is_control, baseline=baseline)
        if predictions
        else None
    )
    return None if selection is None else examples_of(selection, metric)
